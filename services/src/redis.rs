//! Redis with an append-only file that is synced on every write.

use crate::folder::Data;
use crate::install::ensure_installed;
use crate::port::free_port;
use crate::process::Launch;
use crate::running::Running;
use crate::{Error, Service};

const SERVICE: Service = Service::Redis;

pub(crate) fn start() -> Result<Running, Error> {
    let program = ensure_installed(SERVICE)?;
    let port = free_port().map_err(Error::system(SERVICE, "find a free port"))?;
    let data = Data::new(SERVICE)?;
    let folder = data.path().display().to_string();
    let port_text = port.to_string();
    let args = [
        "--bind",
        "127.0.0.1",
        "--port",
        &port_text,
        "--dir",
        &folder,
        "--save",
        "",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ];
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Running::start(SERVICE, Launch { program, args, user: None }, port, data)
}
