use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::builder::Plan;
use crate::install::{debian, find};
use crate::process::Launch;
use crate::{Builder, Error, Running, Service};

/// Redis with its append-only file.
#[derive(Clone, Copy, Debug)]
pub struct Redis;

impl Redis {
    /// How to start one. Settings are lines of its configuration file; `appendonly` `no` makes it
    /// forget everything when it is killed.
    pub fn builder() -> Builder {
        Builder::new(Service::Redis)
    }

    /// Starts one as it is by default: every write in the append-only file before it is answered,
    /// on the disk within a second.
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

pub(crate) fn install() -> Result<PathBuf, Error> {
    debian(Service::Redis.name(), "redis-server", || find("redis-server"))
}

pub(crate) fn prepare(program: PathBuf, plan: &Plan<'_>) -> Result<Launch, Error> {
    let mut text = format!(
        "bind 127.0.0.1\nport {}\ndir \"{}\"\nsave \"\"\nappendonly yes\nappendfsync everysec\n",
        plan.own_ports().client,
        plan.folder.display(),
    );
    for (name, value) in plan.settings {
        let _ = writeln!(text, "{name} {value}");
    }
    let file = plan.folder.join("redis.conf");
    fs::write(&file, text).map_err(Error::system(Service::Redis, "write its configuration"))?;
    let args = vec![file.display().to_string()];
    Ok(Launch { program, args, env: Vec::new(), user: None, stop_signal: "TERM" })
}
