//! Servers that come as jars from the central Maven repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::install::{run, tool};
use crate::{Error, Service};

/// Fetches the jars of these artifacts of one group and version, with all that they need, into `jars`. `folder` has the
/// Maven project.
pub(crate) fn fetch(
    service: Service,
    (group, artifacts, version): (&str, &[&str], &str),
    folder: &Path,
    jars: &Path,
) -> Result<(), Error> {
    let name = service.name();
    let maven = tool(service, "mvn", "Maven")?;
    let dependency = |artifact: &&str| {
        format!(
            "    <dependency>\n      <groupId>{group}</groupId>\n      \
             <artifactId>{artifact}</artifactId>\n      <version>{version}</version>\n    </dependency>\n"
        )
    };
    let dependencies: String = artifacts.iter().map(dependency).collect();
    let project = format!(
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n  <groupId>dlq</groupId>\n  \
         <artifactId>{name}</artifactId>\n  <version>1</version>\n  <dependencies>\n{dependencies}  \
         </dependencies>\n</project>\n"
    );
    let file = folder.join("pom.xml");
    fs::write(&file, project).map_err(Error::system(name, "write the Maven project"))?;
    let mut command = Command::new(maven);
    command.args(["--quiet", "--batch-mode", "--file"]).arg(&file);
    command.arg("dependency:copy-dependencies");
    command.arg(format!("-DoutputDirectory={}", jars.display()));
    run(name, &mut command)
}
