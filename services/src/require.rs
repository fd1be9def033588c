use crate::{Error, Running, Service, start};

/// A server for a test: the one that the environment names, or one of our own.
///
/// `None` when it cannot be had; the reason is printed, and the test returns. Where `DLQ_TEST_REQUIRE` lists the server
/// (`DLQ_TEST_REQUIRE=nats,postgres`) that is an error instead: a machine that must have it does not go green without.
///
/// # Errors
///
/// When the server is required and cannot be had.
pub fn require(service: Service) -> Result<Option<Running>, Error> {
    match start(service) {
        Ok(running) => Ok(Some(running)),
        Err(error) if is_required(service, std::env::var("DLQ_TEST_REQUIRE").ok().as_deref()) => {
            Err(error)
        }
        Err(error) => {
            eprintln!("SKIPPED, {error}");
            Ok(None)
        }
    }
}

fn is_required(service: Service, list: Option<&str>) -> bool {
    list.unwrap_or_default().split(',').any(|name| name.trim() == service.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_is_required() {
        assert!(is_required(Service::Nats, Some("postgres, nats")));
        assert!(!is_required(Service::Kafka, Some("postgres, nats")));
        assert!(!is_required(Service::Nats, None));
    }
}
