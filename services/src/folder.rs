//! Folders: the cache of what was installed, and the data of what runs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Service};

/// Returns the folder of installed servers: `$DLQ_SERVICES_CACHE`, else `dlq-services` in the user's cache folder
/// (`$XDG_CACHE_HOME`, else `$HOME/.cache`), else in the folder for temporary files.
#[must_use]
pub fn cache() -> PathBuf {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("DLQ_SERVICES_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("dlq-services")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache").join("dlq-services")))
        .unwrap_or_else(|| std::env::temp_dir().join("dlq-services"));
    // Servers are started in another folder and by other users: a relative path would lead nowhere.
    std::path::absolute(&folder).unwrap_or(folder)
}

/// The data folder of one server or cluster.
#[derive(Debug)]
pub(crate) struct Data {
    path: PathBuf,
    /// Set for temporary data: a locked file beside the folder. While we live nobody else can lock
    /// it, so that the folders of killed processes can be told apart and removed.
    lock: Option<(File, PathBuf)>,
}

impl Data {
    /// A new, empty folder, removed when this is dropped. What a killed process left behind is
    /// removed by the next that starts a server.
    pub(crate) fn temporary(service: Service) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let failed = || Error::system(service, "create a folder for its data");
        let root = std::env::temp_dir().join(format!("dlq-services-{}", crate::install::user_id()));
        create(&root).map_err(failed())?;
        remove_abandoned(&root);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{}-{number}-{service}", std::process::id()));
        let lock_path = path.with_extension("lock");
        let lock = File::create(&lock_path).map_err(failed())?;
        lock.lock().map_err(failed())?;
        create(&path).map_err(failed())?;
        Ok(Self { path, lock: Some((lock, lock_path)) })
    }

    /// A folder of the caller's, which stays.
    pub(crate) fn kept(service: Service, path: &Path) -> Result<Self, Error> {
        let failed = || Error::system(service, &format!("create {}", path.display()));
        let path = std::path::absolute(path).map_err(failed())?;
        create(&path).map_err(failed())?;
        Ok(Self { path, lock: None })
    }

    /// A folder inside, for one node.
    pub(crate) fn node(&self, service: Service, number: usize) -> Result<PathBuf, Error> {
        let path = self.path.join(format!("n{number}"));
        create(&path).map_err(Error::system(service, "create a folder for a node"))?;
        Ok(path)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some((_lock, lock_path)) = &self.lock {
            // A server that is still dying may write meanwhile; the next process removes the rest.
            if fs::remove_dir_all(&self.path).is_ok() {
                let _ = fs::remove_file(lock_path);
            }
        }
    }
}

/// Creates a folder that everybody may enter, since servers run as users of their own.
fn create(path: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Removes the folders whose owners are gone. An owner locks before it creates its folder, so a
/// folder that can be locked has none.
fn remove_abandoned(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let folder = entry.path();
        if !folder.is_dir() {
            continue;
        }
        let lock_path = folder.with_extension("lock");
        let lock = File::options().write(true).create(true).truncate(false).open(&lock_path);
        if lock.as_ref().is_ok_and(|lock| lock.try_lock().is_ok())
            && fs::remove_dir_all(&folder).is_ok()
        {
            let _ = fs::remove_file(&lock_path);
        }
    }
}
