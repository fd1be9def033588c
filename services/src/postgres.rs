//! PostgreSQL, which refuses to run as root and keeps every promise of durability that it makes by default.

use std::path::Path;

use crate::folder::Data;
use crate::install::ensure_installed;
use crate::port::free_port;
use crate::process::{Launch, run_as};
use crate::running::Running;
use crate::{Error, ErrorKind, Service};

const SERVICE: Service = Service::Postgres;
/// The user that Debian's package creates.
const USER: &str = "postgres";

pub(crate) fn start() -> Result<Running, Error> {
    let server = ensure_installed(SERVICE)?;
    let port = free_port().map_err(Error::system(SERVICE, "find a free port"))?;
    let data = Data::new(SERVICE)?;
    if crate::install::is_root() {
        give_away(data.path())?;
    }
    let folder = data.path().join("cluster").display().to_string();
    let launch = |program: &str, args: &[&str]| Launch {
        program: server.with_file_name(program),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        user: Some(USER),
    };
    run_as(
        SERVICE,
        &launch(
            "initdb",
            &["-D", &folder, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"],
        ),
    )?;
    let sockets = format!("unix_socket_directories={}", data.path().display());
    let port_text = port.to_string();
    let args =
        ["-D", &folder, "-p", &port_text, "-c", "listen_addresses=127.0.0.1", "-c", &sockets];
    Running::start(SERVICE, launch("postgres", &args), port, data)
}

fn give_away(folder: &Path) -> Result<(), Error> {
    let status = std::process::Command::new("chown")
        .arg(USER)
        .arg(folder)
        .status()
        .map_err(Error::system(SERVICE, "run `chown`"))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::System,
        SERVICE,
        format!("cannot give {} to the user {USER}", folder.display()),
    ))
}
