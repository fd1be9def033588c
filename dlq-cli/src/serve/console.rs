//! The console, beside the metrics.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use axum::Router;
use dlq_admin::{Access, Admin, Role, Token};
use dlq_core::DeadLetters;
use dlq_core::store::Cluster;

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::broker::ConsoleLog;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::cli::BrokerArgs;
use crate::cli::ServeArgs;
use crate::error::CliError;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
use crate::output::Progress;
use crate::{ask, contexts, open};

/// Console of stores and of logs of brokers.
pub(super) struct Console {
    pub(super) router: Router,
    has_login: bool,
}

impl Console {
    /// Refuses an address that others reach, where nobody is asked for a login.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), CliError> {
        if self.has_login || address.is_loopback() {
            return Ok(());
        }
        Err(CliError::refused(format!(
            "cannot serve the console at {address}: without a login everybody who reaches it could replay and delete letters; name \
             the tokens with --token-file FILE, a line for each: NAME read|operate|admin TOKEN, or below [console.tokens] of the \
             configuration file; or listen at 127.0.0.1"
        )))
    }

    /// Returns what is said about the login behind the address.
    pub(super) fn login(&self) -> &'static str {
        if self.has_login {
            " and asks for a token"
        } else {
            " for this machine alone, without a login"
        }
    }
}

/// Opens the console where it is asked for.
pub(super) async fn open(
    url: &str,
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))] at: &BrokerArgs,
    args: &ServeArgs,
    tokens: Vec<Token>,
    via: BTreeSet<Cluster>,
) -> Result<Option<Console>, CliError> {
    if !args.console {
        return Ok(None);
    }
    let has_login = !tokens.is_empty();
    // Without a login the audit names whoever started the process, as it would for the command.
    let access =
        if has_login { Access::tokens(tokens) } else { Access::open().actor(ask::actor(None).who) };
    // The console asks the store itself, by a connection of its own: a slow page must not hold up the look for
    // `/metrics`.
    let first = Letters::open(
        url,
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
        (at, args),
    );
    let admin = match first.await? {
        Letters::Store(store) => Admin::new(store),
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
        Letters::Log(log) => Admin::of_log("default", log),
    };
    let mut admin = admin.access(access).via(via);
    let mut mask = args.mask.clone();
    for name in &args.also {
        let (url, of_context) = contexts::named(name).await?;
        let letters = Letters::open(
            &url,
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            (at, args),
        );
        let letters = letters.await.map_err(|error| error.about(&format!("the context {name}")))?;
        admin = match letters {
            Letters::Store(store) => admin.store(name, store),
            #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
            Letters::Log(log) => admin.log(name, log),
        };
        // Rules hold for all stores of a console: rather too much is masked than too little.
        mask = mask.and(of_context);
    }
    Ok(Some(Console { router: admin.mask(mask).router(), has_login }))
}

/// Letters that the console shows.
enum Letters {
    Store(DeadLetters),
    #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
    Log(ConsoleLog),
}

impl Letters {
    /// Opens a store. A broker is asked with the first page, as one that is away must not keep others from being served.
    async fn open(
        url: &str,
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))] (at, args): (
            &BrokerArgs,
            &ServeArgs,
        ),
    ) -> Result<Self, CliError> {
        #[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
        if let Some(log) = ConsoleLog::of(url, at, args)? {
            // The bar of a reading is for the person who asked for it, who is not at this terminal.
            Progress::be_quiet();
            return Ok(Self::Log(log));
        }
        open::store(url, false).await.map(Self::Store)
    }
}

/// Returns the tokens that let people and programs in: those of the file that is named, or else of the configuration.
pub(super) async fn tokens(args: &ServeArgs) -> Result<Vec<Token>, CliError> {
    // A token file that nobody needs is not read, so that its absence ends nothing.
    if !args.console {
        return Ok(Vec::new());
    }
    // The file takes the place of the configuration rather than adding to it: whoever names it knows who is let in.
    let Some(path) = &args.token_file else {
        let configured = contexts::console_tokens().await?;
        return configured
            .into_iter()
            .map(|(name, role, secret)| token(&name, &role, &secret))
            .collect();
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        CliError::refused(format!(
            "cannot read the tokens from {}: {error}; check the path and its permissions",
            path.display()
        ))
    })?;
    if contexts::is_readable_by_others(path) {
        say!("dlq: warning: others can read the tokens in {}; chmod 600 it", path.display());
    }
    let tokens = of_file(&text).map_err(|error| error.about(&path.display().to_string()))?;
    if tokens.is_empty() {
        return Err(no_tokens(path));
    }
    Ok(tokens)
}

/// Refuses a file without tokens, since without one everybody would be let in.
fn no_tokens(path: &Path) -> CliError {
    CliError::refused(format!(
        "{} has no token; write a line for each: NAME read|operate|admin TOKEN",
        path.display()
    ))
}

/// Reads lines of a name, a role and a token. Empty lines and those that begin with `#` say nothing.
fn of_file(text: &str) -> Result<Vec<Token>, CliError> {
    let lines = text.lines().enumerate();
    let said = lines.filter(|(_, line)| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let read = said.map(|(index, line)| {
        let mut words = line.split_whitespace();
        let (Some(name), Some(role), Some(secret), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            // The line may hold a token, so it is not quoted.
            return Err(CliError::refused(format!(
                "line {}: expected NAME read|operate|admin TOKEN",
                index + 1
            )));
        };
        token(name, role, secret).map_err(|error| error.about(&format!("line {}", index + 1)))
    });
    read.collect()
}

fn token(name: &str, role: &str, secret: &str) -> Result<Token, CliError> {
    let role: Role = role.parse().map_err(|_| {
        CliError::refused(format!("the role of {name} is none; expected read, operate or admin"))
    })?;
    // `Token` would never accept it, and its owner would look for the mistake in what they type.
    if secret.len() < Token::SHORTEST {
        return Err(CliError::refused(format!(
            "the token of {name} has fewer than {} characters and could be guessed; make one with: openssl rand -hex 16",
            Token::SHORTEST
        )));
    }
    Ok(Token::new(name, role, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_a_role_and_a_token() {
        let text = "# people\n\nana admin 0123456789abcdef\r\n bo\tread  fedcba9876543210 \n";
        assert_eq!(of_file(text).unwrap().len(), 2);
        for (wrong, says) in [
            ("ana admin", "line 1: expected"),
            ("\nana admin 0123456789abcdef more", "line 2: expected"),
            ("ana root 0123456789abcdef", "line 1: the role of ana"),
            ("ana admin s3cret", "fewer than 16"),
        ] {
            let error = of_file(wrong).unwrap_err().into_message();
            assert!(error.contains(says) && !error.contains("s3cret"), "{error}");
        }
    }
}
