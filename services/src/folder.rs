//! Folders: the cache of what was installed, and the data of what runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Service};

/// Where installed servers are kept: `$DLQ_SERVICES_CACHE`, else `dlq-services` in the user's cache folder.
#[must_use]
pub fn cache() -> PathBuf {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("DLQ_SERVICES_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("dlq-services")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache").join("dlq-services")))
        .unwrap_or_else(|| std::env::temp_dir().join("dlq-services"))
}

/// The data folder of one server. Removed when dropped; what a killed process left behind is removed by the next.
#[derive(Debug)]
pub(crate) struct Data(PathBuf);

impl Data {
    /// A new, empty folder that everybody may enter (servers run as users of their own).
    pub(crate) fn new(service: Service) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = std::env::temp_dir().join("dlq-services-data");
        fs::create_dir_all(&root).map_err(Error::system(service, "create the folder for data"))?;
        remove_abandoned(&root);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{}-{number}-{service}", std::process::id()));
        fs::create_dir(&path).map_err(Error::system(service, "create a data folder"))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // A server that is still dying may write while we remove; what is left is removed by the next process.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of processes that are gone. Their names begin with the process id.
fn remove_abandoned(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.split('-').next())
            .and_then(|id| id.parse::<u32>().ok());
        if owner.is_some_and(|id| {
            !Path::new("/proc").join(id.to_string()).exists() && Path::new("/proc/self").exists()
        }) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
