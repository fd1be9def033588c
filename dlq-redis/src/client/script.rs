//! [`Script`]: a script that the server runs as one step.

use std::sync::OnceLock;

use redis::{Arg, Cmd, ToRedisArgs};

/// A script of this crate, run by its digest.
///
/// Every script is idempotent: run again with the same arguments it changes nothing. A server that does not know its
/// digest, since it has restarted or failed over, is sent the text.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, digest: OnceLock::new() }
    }

    fn digest(&self) -> &str {
        // Hashed once, as every call needs it.
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    /// Begins a call with these keys. In a cluster all of them are in one slot.
    pub(crate) fn keys<K: AsRef<[u8]>>(&'static self, keys: &[K]) -> ScriptCall {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.digest()).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_ref());
        }
        ScriptCall { script: self, cmd }
    }
}

/// A call of a [`Script`].
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct ScriptCall {
    script: &'static Script,
    cmd: Cmd,
}

impl ScriptCall {
    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    pub(super) fn by_digest(&self) -> &Cmd {
        &self.cmd
    }

    /// The same call with the text of the script, from which the server learns it.
    pub(super) fn by_text(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.script.text);
        // The first two are the command and the digest, for which the text stands here.
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(bytes) = arg {
                cmd.arg(bytes);
            }
        }
        cmd
    }

    pub(super) fn is_of(&self, script: &'static Script) -> bool {
        std::ptr::eq(self.script, script)
    }

    pub(super) fn script(&self) -> &'static Script {
        self.script
    }
}
