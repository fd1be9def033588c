use super::*;

#[test]
fn the_group_waits_for_as_long_as_what_is_in_flight_may_take_to_end() {
    const KEY: &str = "max.poll.interval.ms";
    let consumer = |brokers: Brokers, seconds| {
        let orders = KafkaTransport::new("orders").name("billing");
        orders.drain(Duration::from_secs(seconds)).at(&brokers).unwrap().client()
    };
    let at = || Brokers::at("nowhere");
    for (drain, wanted) in [(5, "300000"), (600, "660000"), (u64::MAX, "86400000")] {
        let config = consumer(at(), drain).unwrap();
        assert_eq!(config.get(KEY), Some(wanted));
        config.create_native_config().expect("the client takes it");
    }
    assert_eq!(consumer(at().with(KEY, "6000"), 5).unwrap().get(KEY), Some("6000"));
    let error = consumer(at().with(KEY, "300000"), 301).unwrap_err();
    assert!(
        matches!(&error, SetupError::Config(text) if text.contains("may take 301s")),
        "{error}"
    );
}
