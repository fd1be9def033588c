//! The same on other servers: this program is started again with another one.

use std::process::Command;

use dlq_services::Redis;

use crate::fixture::{SERVER, available};

/// Runs all tests but these and those named in `skip`.
fn all_pass_on(server: &str, skip: &[&str]) {
    if !available() || std::env::var(SERVER).is_ok() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SERVER, server).args(["--skip", "others"]);
    skip.iter().for_each(|name| _ = command.args(["--skip", name]));
    let ended = command.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{told}\n{}", String::from_utf8_lossy(&ended.stderr));
    let result = told.lines().find(|line| line.starts_with("test result")).unwrap_or_default();
    println!("on {server}: {result}");
    assert!(!result.contains("ok. 0 passed"), "{result}");
}

/// The least version.
#[test]
fn all_pass_on_redis_6_2() {
    if Redis::installed("6.2").is_ok() {
        all_pass_on("6.2", &[]);
    }
}

#[test]
fn all_pass_on_valkey_9() {
    if Redis::installed("valkey-9").is_ok() {
        all_pass_on("valkey-9", &[]);
    }
}

/// A test that breaks a server has one of its own.
#[cfg(feature = "cluster")]
#[test]
fn all_pass_on_a_cluster() {
    all_pass_on("cluster", &["failing", "in_doubt"]);
}
