use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::builder::Plan;
use crate::install::{debian, find, user_id};
use crate::process::{Launch, run_to_end};
use crate::{Builder, Error, ErrorKind, Running, Service};

/// PostgreSQL. It refuses to run as root and becomes the user `postgres` then.
#[derive(Clone, Copy, Debug)]
pub struct Postgres;

impl Postgres {
    /// Returns a builder. Settings are its run-time parameters, such as `max_connections`.
    pub fn builder() -> Builder {
        Builder::new(Service::Postgres)
    }

    /// Starts one as it is by default: `fsync` on, everybody on this machine trusted.
    ///
    /// # Errors
    ///
    /// See [`Builder::start`].
    pub fn start() -> Result<Running, Error> {
        Self::builder().start()
    }
}

pub(crate) fn install() -> Result<PathBuf, Error> {
    debian(Service::Postgres.name(), "postgresql", find_server)
}

/// The server of the newest version installed; Debian keeps it off the path.
fn find_server() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let folder = entry.path().join("bin");
        let complete = folder.join("postgres").is_file() && folder.join("initdb").is_file();
        complete.then(|| (version, folder.join("postgres")))
    });
    debian.max().map(|(_, program)| program).or_else(|| find("postgres"))
}

pub(crate) fn prepare(program: PathBuf, plan: &Plan<'_>) -> Result<Launch, Error> {
    let data = plan.folder.join("data");
    let launch = |program: PathBuf, args: Vec<String>| Launch {
        program,
        args,
        env: Vec::new(),
        user: Some("postgres"),
        // Its fast shutdown; the one by TERM waits for clients to leave.
        stop_signal: "INT",
    };
    if !data.join("PG_VERSION").exists() {
        fs::create_dir_all(&data)
            .map_err(Error::system(Service::Postgres, "create its data folder"))?;
        if user_id() == 0 {
            give_to_postgres(&data)?;
        }
        let initdb = program.with_file_name("initdb");
        let args = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"];
        let mut args = args.map(str::to_owned).to_vec();
        args.push(format!("--pgdata={}", data.display()));
        run_to_end(Service::Postgres, &launch(initdb, args))?;
    }
    let mut args = vec!["-D".to_owned(), data.display().to_string()];
    args.extend(["-h", "127.0.0.1", "-p"].map(str::to_owned));
    args.push(plan.own_ports().client.to_string());
    // No socket in the file system: its folder may not exist, and nobody needs it.
    args.extend(["-c".to_owned(), "unix_socket_directories=".to_owned()]);
    for (name, value) in plan.settings {
        args.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    Ok(launch(program, args))
}

fn give_to_postgres(folder: &std::path::Path) -> Result<(), Error> {
    let output = Command::new("chown")
        .arg("postgres:postgres")
        .arg(folder)
        .output()
        .map_err(Error::system(Service::Postgres, "run `chown`"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let text = format!("cannot give its data folder to the user `postgres`: {text}");
    Err(Error::new(ErrorKind::System, Service::Postgres, text))
}
