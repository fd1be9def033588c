use std::fmt;

/// A setting that is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) setting: &'static str,
    pub(crate) found: String,
    pub(crate) wanted: String,
    /// Effect on messages; may be empty.
    pub(crate) why: &'static str,
}

/// Keeps the settings that differ.
#[derive(Debug, Default)]
pub(crate) struct Differences(pub(crate) Vec<Difference>);

impl Differences {
    pub(crate) fn see(&mut self, setting: &'static str, found: String, wanted: String) {
        self.why(setting, found, wanted, "");
    }

    pub(crate) fn why(
        &mut self,
        setting: &'static str,
        found: String,
        wanted: String,
        why: &'static str,
    ) {
        if found != wanted {
            self.0.push(Difference { setting, found, wanted, why });
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Difference { setting, found, wanted, why }) in self.0.iter().enumerate() {
            let (and, so) = (if n > 0 { "; " } else { "" }, if why.is_empty() { "" } else { ", " });
            write!(f, "{and}`{setting}` is {found}, asked was {wanted}{so}{why}")?;
        }
        Ok(())
    }
}

/// Returns a setting as messages show it.
pub(crate) fn word(value: &impl fmt::Debug) -> String {
    format!("{value:?}")
}
