use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::CliError;

/// A deployment from a file.
pub(crate) fn read_deployment<T: DeserializeOwned>(path: &Path) -> Result<T, CliError> {
    let file = File::open(path)
        .map_err(|error| CliError::refused(format!("cannot read {}: {error}", path.display())))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        CliError::refused(format!("{} describes no deployment: {error}", path.display()))
    })
}
