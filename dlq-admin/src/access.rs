//! [`Access`]: who may do what.

use std::fmt;
use std::str::FromStr;

use axum::http::HeaderName;

/// Role of somebody who uses the console or the HTTP interface. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Sees everything but payloads, keys and values of headers, which can be revealed one letter at a time, with a reason.
    Read,
    /// Also sees payloads, sends letters back, steers operations and marks letters.
    Operate,
    /// Also edits and deletes letters.
    Admin,
}

impl Role {
    /// Every role, the least powerful first.
    pub const ALL: &'static [Self] = &[Self::Read, Self::Operate, Self::Admin];

    /// Returns the text form: `read`, `operate` or `admin`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is not a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRole(String);

impl fmt::Display for UnknownRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a role; expected one of: read, operate, admin", self.0)
    }
}

impl std::error::Error for UnknownRole {}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = Self::ALL.iter().copied().find(|role| role.as_str() == text);
        role.ok_or_else(|| UnknownRole(text.chars().take(80).collect()))
    }
}

/// A token that somebody logs in with. Only its hash is kept.
#[derive(Clone)]
#[must_use]
pub struct Token {
    pub(crate) name: String,
    pub(crate) role: Role,
    hash: blake3::Hash,
}

impl Token {
    /// Minimum number of characters of a token, such as 16 random ones.
    pub const SHORTEST: usize = 16;

    /// The token `secret` of the person or program `name`. One that is shorter than [`SHORTEST`](Self::SHORTEST) could be
    /// guessed, and is never accepted.
    pub fn new(name: impl Into<String>, role: Role, secret: impl AsRef<[u8]>) -> Self {
        // A fast hash is enough: tokens are long and random, so that nobody finds one by trying, as they would
        // passwords.
        Self { name: name.into(), role, hash: blake3::hash(secret.as_ref()) }
    }

    /// Returns the first of these tokens that is `secret`. All of them are compared, each in constant time.
    pub(crate) fn find<'t>(tokens: &'t [Self], secret: &[u8]) -> Option<&'t Self> {
        // A token of the configuration that is too short is never found here, rather than refused with an error that
        // `new` would need.
        if secret.len() < Self::SHORTEST {
            return None;
        }
        let hash = blake3::hash(secret);
        let mut found = None;
        for token in tokens {
            // The comparison of two hashes takes the same time whatever it finds.
            if token.hash == hash && found.is_none() {
                found = Some(token);
            }
        }
        found
    }
}

/// Without the hash.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, role, .. } = self;
        f.debug_struct("Token").field("name", name).field("role", role).finish_non_exhaustive()
    }
}

/// Rule by which somebody is let in.
///
/// ```
/// use dlq_admin::{Access, Role, Token};
///
/// let access = Access::tokens([
///     Token::new("ana", Role::Admin, "9f2c5e71d0b84a36"),
///     Token::new("grafana", Role::Read, "c01d8b7723aa4f59"),
/// ]);
/// # let _ = access;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Access(pub(crate) Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Open { who: String, hosts: Vec<String> },
    Tokens(Vec<Token>),
    Header { user: HeaderName, role: HeaderName },
}

impl Access {
    /// Lets everybody in who reaches the router, as [`Role::Admin`]: for a listener at a loopback address alone.
    ///
    /// A page of another site must not reach it through a browser on the same machine, so requests have to name
    /// `localhost`, a loopback address or one of the [`hosts`](Self::hosts) as their host.
    pub fn open() -> Self {
        Self(Kind::Open { who: "console".to_owned(), hosts: Vec::new() })
    }

    /// Sets the name under which [`open`](Self::open) access acts. Defaults to `console`. Other kinds have their own names.
    pub fn actor(mut self, name: impl Into<String>) -> Self {
        if let Kind::Open { who, .. } = &mut self.0 {
            *who = name.into();
        }
        self
    }

    /// Sets the names of hosts, without ports, that requests of [`open`](Self::open) access may be addressed to beside
    /// loopback ones. Say this only where something else asks for a login. Defaults to none.
    pub fn hosts<H: Into<String>>(mut self, names: impl IntoIterator<Item = H>) -> Self {
        if let Kind::Open { hosts, .. } = &mut self.0 {
            *hosts = names.into_iter().map(Into::into).collect();
        }
        self
    }

    /// Lets in who has one of these tokens: a person on the login page, a program in the header `Authorization: Bearer …`.
    pub fn tokens(tokens: impl IntoIterator<Item = Token>) -> Self {
        Self(Kind::Tokens(tokens.into_iter().collect()))
    }

    /// Believes a proxy that sets these two headers: the name of the user, and `read`, `operate` or `admin`.
    ///
    /// Requires that only the proxy reaches the router, and the proxy has to remove both headers from requests of others.
    pub fn trusted_header(user: HeaderName, role: HeaderName) -> Self {
        Self(Kind::Header { user, role })
    }
}

impl Default for Access {
    /// Returns [`Access::open`].
    // Open is safe as a default only because it answers nothing but loopback addresses.
    fn default() -> Self {
        Self::open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_whole_or_not_at_all() {
        let tokens = [
            Token::new("ana", Role::Admin, "0123456789abcdef"),
            Token::new("bo", Role::Read, "fedcba9876543210"),
            Token::new("short", Role::Admin, "short"),
        ];
        let name = |secret: &str| Token::find(&tokens, secret.as_bytes()).map(|token| &*token.name);
        assert_eq!(name("0123456789abcdef"), Some("ana"));
        assert_eq!(name("fedcba9876543210"), Some("bo"));
        for wrong in ["", "short", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("hash"));
    }

    #[test]
    fn roles_are_ordered_and_read_back() {
        assert!(Role::Read < Role::Operate && Role::Operate < Role::Admin);
        for role in Role::ALL {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), *role);
        }
        assert!("root".parse::<Role>().is_err());
    }
}
