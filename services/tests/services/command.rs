//! The command, and through it what depends on the environment of a process.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use dlq_services::{Redis, Running, Service, or_skip, wire};

use crate::{PATIENCE, until};

fn services(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services"));
    command.args(args).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for (args, expected) in [
        (&[] as &[&str], "a verb is missing, expected one of: up, install, env, help"),
        (&["down"], "unknown verb `down`, expected one of: up, install, env, help"),
        (&["up", "oracle"], "`oracle` is not a server; expected one of: nats, kafka, postgres"),
        (&["up", "--fast"], "`up` has no option `--fast`"),
        (&["install", "--cluster"], "`install` has no option `--cluster`"),
        (&["env", "nats"], "`env` takes no servers"),
    ] {
        let (code, out, err) = text(&services(args).output().unwrap());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}");
        assert!(err.starts_with(&format!("services: {expected}")), "{args:?}: {err}");
    }
}

#[test]
fn help_is_not_an_error() {
    for args in [["help"], ["--help"]] {
        let (code, out, err) = text(&services(&args).output().unwrap());
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("services up [--cluster]"), "{out}");
    }
}

/// A machine on which nothing is installed: no programs, an empty cache.
struct Bare(PathBuf);

impl Bare {
    fn new(name: &str) -> Self {
        let name = format!("dlq-services-bare-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn install(&self, service: &str) -> String {
        let mut command = services(&["install", service]);
        command.env("PATH", &self.0).env("DLQ_SERVICES_CACHE", self.0.join("cache"));
        let (code, out, err) = text(&command.output().unwrap());
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        err
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_missing_tool_is_named() {
    let bare = Bare::new("tools");
    for (service, expected) in [
        ("nats", "nats: `go` is missing; install Go, or set DLQ_TEST_NATS_URL"),
        ("kafka", "kafka: `java` is missing; install Java 17 or later, or set DLQ_TEST_KAFKA_URL"),
    ] {
        let err = bare.install(service);
        assert!(err.starts_with(&format!("services: {expected}")), "{err}");
    }
}

#[test]
fn what_cannot_be_installed_names_the_command_to_run() {
    let bare = Bare::new("package");
    for (service, program, package) in
        [("redis", "redis", "redis-server"), ("mongo", "javac", "default-jdk-headless")]
    {
        let err = bare.install(service);
        assert!(
            err.starts_with(&format!("services: {program}: it is not installed, and ")),
            "{err}"
        );
        let command = format!("run `apt-get install {package}` as root");
        assert!(err.trim_end().ends_with(&command), "{err}");
    }
}

#[cfg(unix)]
#[test]
fn a_failed_installation_shows_what_was_run_and_is_tried_again() {
    use std::os::unix::fs::PermissionsExt as _;

    let bare = Bare::new("failing");
    let go = bare.0.join("go");
    std::fs::write(&go, "#!/bin/sh\necho \"no route to $1 from $GOBIN\" >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&go, std::fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..2 {
        let err = bare.install("nats");
        assert!(
            err.contains("nats-server/v2@v2.15.2` failed:\nno route to install from "),
            "{err}"
        );
    }
}

#[test]
fn urls_in_the_environment_replace_servers() {
    let mut command = services(&["env"]);
    for service in Service::ALL {
        command.env(service.variable(), "redis://ana:s3cret@127.0.0.1:1");
    }
    let (code, out, err) = text(&command.env("PATH", "/usr/bin:/bin").output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    for service in Service::ALL {
        let line = out.lines().find(|line| line.starts_with(service.name())).unwrap();
        let shown = format!("redis://ana:***@127.0.0.1:1 ({}): ", service.variable());
        assert!(line.contains(&shown), "{line}");
    }
    assert!(!out.contains("s3cret") && !err.contains("s3cret"), "{out}{err}");
}

#[test]
fn a_given_server_is_used_and_an_absent_one_is_an_error() {
    let Ok(redis) = or_skip(Service::Redis, Redis::builder().ours().start()) else { return };
    let variable = Service::Redis.variable();

    let mut up = services(&["up", "--until-stdin-closes", "redis"]);
    let output = up.env(variable, redis.url()).output().unwrap();
    let (code, out, err) = text(&output);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, format!("export {variable}='{}'\n", redis.url()));
    until(|| redis.ping());

    let url = redis.url().to_owned();
    drop(redis);
    let mut up = services(&["up", "--until-stdin-closes", "redis"]);
    let (code, out, err) = text(&up.env(variable, url).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("services: redis: no connection to 127.0.0.1:"), "{err}");
}

/// Started for a shell, with the server it announced.
fn up(args: &[&str]) -> Option<(Child, Running)> {
    let mut command = services(args);
    command.env_remove(Service::Redis.variable()).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let Some(url) = line.strip_prefix("export DLQ_TEST_REDIS_URL='") else {
        let status = child.wait().unwrap();
        // Where there is no Redis there is nothing to test.
        drop(or_skip(Service::Redis, Redis::builder().ours().start()).ok()?);
        panic!("`services up` ended with {status}: {line:?}");
    };
    let running = Running::at(Service::Redis, url.trim_end().trim_end_matches('\''));
    until(|| running.ping());
    Some((child, running))
}

fn data_folder(redis: &Running) -> PathBuf {
    let reply = wire::redis::command(redis.url(), &["CONFIG", "GET", "dir"], PATIENCE).unwrap();
    PathBuf::from(reply.unwrap().lines().nth(1).unwrap())
}

/// The server answers no more, soon.
fn dies(redis: &Running) {
    until(|| match redis.ping_within(Duration::from_millis(500)) {
        Ok(()) => Err("it still answers"),
        Err(_) => Ok(()),
    });
}

/// Its data are gone, soon.
fn is_removed(folder: &Path) {
    until(|| if folder.exists() { Err("its data are still there") } else { Ok(()) });
}

/// Whether this process was started with interrupts ignored, which its children inherit.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 2 != 0)
}

#[test]
fn up_ends_when_it_is_terminated_or_killed() {
    for signal in ["INT", "TERM", "KILL"] {
        if signal == "INT" && ignores_interrupts() {
            println!("skipped for INT: it is ignored here, as in the background of a shell");
            continue;
        }
        let Some((mut child, redis)) = up(&["up", "redis"]) else { return };
        let folder = data_folder(&redis);
        let id = child.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -s $0 $1", signal, &id]).status().unwrap();
        assert!(sent.success());
        assert!(!child.wait().unwrap().success());
        dies(&redis);
        is_removed(&folder);
    }
}

#[test]
fn up_may_end_with_its_input() {
    let Some((mut child, redis)) = up(&["up", "redis", "--until-stdin-closes"]) else { return };
    let folder = data_folder(&redis);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    dies(&redis);
    is_removed(&folder);
}

#[cfg(target_os = "linux")]
#[test]
fn servers_die_with_a_process_that_is_killed() {
    let Some((mut child, redis)) = up(&["up", "redis", "--until-stdin-closes"]) else { return };
    let folder = data_folder(&redis);
    child.kill().unwrap();
    child.wait().unwrap();
    dies(&redis);
    // Nobody was left to remove its data, so the next process that starts a server does.
    drop(Redis::builder().ours().start().unwrap());
    is_removed(&folder);
}
