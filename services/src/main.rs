//! `services`: starts real brokers and databases for a shell.

use std::io::Read as _;
use std::process::ExitCode;

use dlq_services::{Service, cache, ensure_installed, start, start_cluster};

const USAGE: &str = "\
usage: services up [NAME…] [--cluster]   install and start servers, print their URLs, stay until Ctrl-C
       services install [NAME…]         install servers
       services env                     print what is installed and which URLs are set
names: nats, kafka, postgres, redis (all of them when none is named); --cluster starts three of nats and kafka";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((verb, rest)) = args.split_first() else { return usage("what to do?") };
    let cluster = rest.iter().any(|arg| arg == "--cluster");
    let names = rest.iter().filter(|arg| *arg != "--cluster");
    let services: Vec<Service> = match names.map(|name| name.parse()).collect() {
        Ok(services) => services,
        Err(error) => return usage(&error),
    };
    let services = if services.is_empty() {
        vec![Service::Nats, Service::Kafka, Service::Postgres, Service::Redis]
    } else {
        services
    };
    let result = match verb.as_str() {
        "up" => up(&services, cluster),
        "install" => services.into_iter().try_for_each(|service| {
            println!("{service}: {}", ensure_installed(service)?.display());
            Ok(())
        }),
        "env" => {
            environment();
            Ok(())
        }
        other => return usage(&format!("`{other}` is not a verb")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("services: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("services: {problem}\n{USAGE}");
    ExitCode::from(2)
}

/// Starts the servers and waits for the end of standard input; Ctrl-C ends us, and with us the servers.
fn up(services: &[Service], cluster: bool) -> Result<(), dlq_services::Error> {
    let mut running = Vec::new();
    let mut clusters = Vec::new();
    for &service in services {
        if cluster && matches!(service, Service::Nats | Service::Kafka) {
            let started = start_cluster(service)?;
            println!("export {}={}", service.variable(), started.url());
            clusters.push(started);
        } else {
            let started = start(service)?;
            println!("export {}={}", service.variable(), started.url());
            running.push(started);
        }
    }
    eprintln!("up; Ctrl-C (or the end of standard input) ends them");
    let mut rest = Vec::new();
    // An error on standard input is its end.
    let _ = std::io::stdin().read_to_end(&mut rest);
    Ok(())
}

fn environment() {
    println!("cache: {}", cache().display());
    for service in Service::ALL {
        match std::env::var(service.variable()) {
            Ok(url) if !url.is_empty() => {
                println!("{service}: {} names {}", service.variable(), shown(&url))
            }
            _ => match ensure_installed(service) {
                Ok(path) => println!("{service}: {}", path.display()),
                Err(error) => println!("{error}"),
            },
        }
    }
}

/// A URL without its password.
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}
