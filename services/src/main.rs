//! Installs and starts the servers for a shell. `services help` says how.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use dlq_services::{Running, Service, cache, ensure_installed, start, start_cluster, tools};

const HELP: &str = "\
Installs and starts the real servers that tests, benches and examples use.

Usage:
  services up [--cluster] [SERVER]...   install and start them, print `export` lines, stay until
                                        stopped (Ctrl-C); then kill them and remove their data
  services install [SERVER]...          install them
  services env                          install all, print what there is and where
  services help                         print this

Servers: nats, kafka, postgres, redis, mongo (without a name: all five).

Options of `up`:
  --cluster              three nodes of each server that forms clusters (nats, kafka, redis)
  --until-stdin-closes   stay until standard input closes, not until stopped

Environment:
  DLQ_TEST_<SERVER>_URL  the server at this URL is used and none started
  DLQ_SERVICES           `off`: install nothing
  DLQ_SERVICES_CACHE     where servers are installed
";

/// Request of the command line.
enum Ask {
    Help,
    Env,
    Install(Vec<Service>),
    Up { servers: Vec<Service>, cluster: bool, until_stdin_closes: bool },
}

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let outcome = match parse(&args) {
        Ok(Ask::Help) => say(HELP.trim_end()),
        Ok(Ask::Env) => env(),
        Ok(Ask::Install(servers)) => install(&servers),
        Ok(Ask::Up { servers, cluster, until_stdin_closes: true }) => up(&servers, cluster),
        Ok(Ask::Up { .. }) => return supervise(&args),
        Err(wrong) => {
            eprintln!("services: {wrong}; `services help` says more");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("services: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Ask, String> {
    let Some((verb, rest)) = args.split_first() else {
        return Err("a verb is missing, expected one of: up, install, env, help".to_owned());
    };
    let (options, names): (Vec<_>, Vec<_>) = rest.iter().partition(|arg| arg.starts_with('-'));
    let known: &[&str] = if verb == "up" { &["--cluster", "--until-stdin-closes"] } else { &[] };
    if options.iter().any(|option| *option == "--help" || *option == "-h") {
        return Ok(Ask::Help);
    }
    if let Some(option) = options.iter().find(|option| !known.contains(&option.as_str())) {
        return Err(format!("`{verb}` has no option `{option}`"));
    }
    let given = |option: &str| options.iter().any(|given| *given == option);
    let mut servers =
        names.iter().map(|name| name.parse::<Service>()).collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        servers = Service::ALL.to_vec();
    }
    match verb.as_str() {
        "up" => Ok(Ask::Up {
            servers,
            cluster: given("--cluster"),
            until_stdin_closes: given("--until-stdin-closes"),
        }),
        "install" => Ok(Ask::Install(servers)),
        "env" if names.is_empty() => Ok(Ask::Env),
        "env" => Err("`env` takes no servers".to_owned()),
        "help" | "--help" | "-h" => Ok(Ask::Help),
        _ => Err(format!("unknown verb `{verb}`, expected one of: up, install, env, help")),
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs `up` in a second process, which ends in good order when we end, however that happens: its
/// standard input closes then. It has a process group of its own, so that Ctrl-C reaches only us.
fn supervise(args: &[String]) -> ExitCode {
    let run = || -> io::Result<ExitCode> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).arg("--until-stdin-closes").stdin(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        // Waiting would close it.
        let input = child.stdin.take();
        let status = child.wait()?;
        drop(input);
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    };
    run().unwrap_or_else(|error| {
        eprintln!("services: cannot start the process that keeps the servers: {error}");
        ExitCode::FAILURE
    })
}

fn up(servers: &[Service], cluster: bool) -> Outcome {
    let mut kept: Vec<Box<dyn fmt::Debug>> = Vec::new();
    for &server in servers {
        let url = if cluster && server.forms_clusters() {
            let cluster = start_cluster(server)?;
            let url = cluster.url();
            kept.push(Box::new(cluster));
            url
        } else {
            let running = start(server)?;
            let url = running.url().to_owned();
            kept.push(Box::new(running));
            url
        };
        say(&format!("export {}={}", server.variable(), quoted(&url)))?;
    }
    eprintln!("services: ready; they end with this command");
    // An error there is its end as well.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    drop(kept);
    Ok(())
}

fn install(servers: &[Service]) -> Outcome {
    for &server in servers {
        let path = ensure_installed(server)?;
        say(&format!("{server:<9} {}", path.display()))?;
    }
    Ok(())
}

fn env() -> Outcome {
    say(&format!("{:<9} {}", "cache", cache().display()))?;
    for server in Service::ALL {
        let text = match server.given_url() {
            Some(url) => {
                let answer = match Running::at(server, url.clone()).ping() {
                    Ok(()) => "answers".to_owned(),
                    Err(error) => error.to_string(),
                };
                format!("{} ({}): {answer}", without_password(&url), server.variable())
            }
            None => match ensure_installed(server) {
                Ok(path) => format!("{} ({})", path.display(), version(server, &path)),
                Err(error) => format!("not available: {error}"),
            },
        };
        say(&format!("{server:<9} {text}"))?;
    }
    for (name, tool) in [("promtool", tools::promtool()), ("pgbouncer", tools::pgbouncer())] {
        let text = match tool {
            Ok(path) => format!("{} ({})", path.display(), first_line(&path, "--version")),
            Err(error) => format!("not available: {error}"),
        };
        say(&format!("{name:<9} {text}"))?;
    }
    Ok(())
}

fn version(server: Service, path: &Path) -> String {
    let with_java = |version: &str| {
        let java = first_line(Path::new("java"), "-version");
        format!("{version}, {java}")
    };
    match server {
        Service::Kafka => with_java(dlq_services::KAFKA_VERSION),
        Service::Mongo => with_java(&format!("mongo-java-server {}", dlq_services::MONGO_VERSION)),
        _ => first_line(path, "--version"),
    }
}

/// The first line that a program prints, on whichever stream.
fn first_line(program: &Path, argument: &str) -> String {
    match Command::new(program).arg(argument).stdin(Stdio::null()).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
        }
        Err(error) => format!("it does not run: {error}"),
    }
}

/// Prints a line at once; a reader that has gone is an error, not a panic.
fn say(line: &str) -> Outcome {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A URL that may be shown.
fn without_password(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let login = before.find("://").map_or(0, |end| end + 3);
    match before[login..].find(':') {
        Some(colon) => format!("{}:***@{host}", &before[..login + colon]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{quoted, without_password};

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("postgres://me:p:w@h:1/x", "postgres://me:***@h:1/x"),
            ("redis://h:1", "redis://h:1"),
            ("postgres://me@h", "postgres://me@h"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn urls_survive_the_shell() {
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
