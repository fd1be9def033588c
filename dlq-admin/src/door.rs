//! Letting people and programs in.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine as _;

use crate::Console;
use crate::access::{Kind, Role, Token};
use crate::params::Params;
use crate::refusal::Refusal;
use crate::same_site::{self, Sender};

/// Name of the cookie that holds the id of a session.
pub(crate) const COOKIE: &str = "dlq_session";

/// Somebody who was let in.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The token of their forms.
    pub(crate) csrf: Option<String>,
    /// True if a browser adds by itself what lets them in, also to requests that another site makes it send.
    is_ambient: bool,
    /// True if there is a session that can be ended.
    pub(crate) has_session: bool,
}

impl Visitor {
    /// Somebody who did not log in. The form of the login has a token as well.
    pub(crate) fn unknown(console: &Console) -> Self {
        let (name, csrf) = ("nobody".to_owned(), console.csrf("login"));
        Self { name, role: Role::Read, csrf, is_ambient: true, has_session: false }
    }
}

/// Lets a request in, or says why not.
pub(crate) fn admit(console: &Console, parts: &Parts) -> Result<Visitor, Refusal> {
    match &console.access.0 {
        Kind::Open { who, hosts } => {
            // Nobody logs in, so the address is the only thing that tells this machine's own browser from a page that
            // had its name pointed here.
            same_site::host(parts, hosts).map_err(Refusal::forbidden)?;
            Ok(Visitor {
                name: who.clone(),
                // Without a login there is nobody to whom a smaller role could be given.
                role: Role::Admin,
                csrf: console.csrf(who),
                is_ambient: true,
                has_session: false,
            })
        }
        Kind::Tokens(tokens) => by_token(console, tokens, parts),
        Kind::Header { user, role } => {
            let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
            // An empty name would be written into the audit, where it names nobody.
            let name = text(user).filter(|name| !name.trim().is_empty()).ok_or_else(|| {
                unknown("the proxy in front did not say who asks; come through the proxy")
            })?;
            let role = text(role).unwrap_or_default();
            // A role that is missing or unknown is refused rather than taken for the least: `read` sees the errors of
            // all letters.
            let role = role.parse().map_err(|error| {
                Refusal::forbidden(format!("the proxy in front gives {name} no role: {error}"))
            })?;
            // The proxy has no session that is known here, so the token is bound to the user that it names.
            let csrf = console.csrf(name);
            let name = name.to_owned();
            Ok(Visitor { name, role, csrf, is_ambient: true, has_session: false })
        }
    }
}

fn by_token(console: &Console, tokens: &[Token], parts: &Parts) -> Result<Visitor, Refusal> {
    // The session counts before the header, or a browser that has both would be taken for a program and not be asked for
    // the token.
    if let Some(id) = session_id(&parts.headers)
        && let Some(session) = console.sessions.get(id)
    {
        let csrf = console.csrf(id);
        let (name, role) = (session.name, session.role);
        return Ok(Visitor { name, role, csrf, is_ambient: true, has_session: true });
    }
    let said = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(secret) = said.and_then(bearer) else {
        return Err(unknown("nobody is logged in; send `Authorization: Bearer TOKEN`, or log in"));
    };
    let token = guess(console, tokens, source(parts), secret.as_bytes())?;
    let (name, role) = (token.name.clone(), token.role);
    // No browser adds a bearer token by itself, so a request that has one was meant, and needs no token of a form.
    Ok(Visitor { name, role, csrf: None, is_ambient: false, has_session: false })
}

/// Returns the token that is `secret`, unless this source has guessed too often.
pub(crate) fn guess<'t>(
    console: &Console,
    tokens: &'t [Token],
    source: Option<IpAddr>,
    secret: &[u8],
) -> Result<&'t Token, Refusal> {
    // Asked before the comparison, or a right guess would come through in any case.
    if let Some(wait) = console.guesses.wait(source) {
        let seconds = wait.as_secs() + 1;
        let text = format!("too many logins have failed; try again in {seconds} s");
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, text);
        return Err(Refusal { retry_after: Some(seconds), ..refusal });
    }
    // Nothing is awaited between the question and the count, so that a burst of guesses cannot pass before the first one
    // counts.
    Token::find(tokens, secret).ok_or_else(|| {
        console.guesses.failed(source);
        // The guess itself is not logged: it may be the right token with a slip of the finger.
        tracing::warn!(source = source.map(tracing::field::display), "login failed");
        unknown("the token is not known; see whether it is typed whole")
    })
}

fn unknown(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, message)
}

fn bearer(said: &str) -> Option<&str> {
    let (scheme, secret) = said.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The id of the session that a browser sends.
pub(crate) fn session_id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    // Of several cookies of this name the first is the one with the longest path, by the order that browsers keep.
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|one| one.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, id)| id.trim())
}

/// The address that a request came from, where the server says.
pub(crate) fn source(parts: &Parts) -> Option<IpAddr> {
    // `X-Forwarded-For` is not believed: whoever guesses could name a new address with each guess.
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

/// Refuses a request that changes something if a page of another site may have sent it.
pub(crate) fn check_sender(
    visitor: &Visitor,
    parts: &Parts,
    params: &Params,
) -> Result<(), Refusal> {
    if !visitor.is_ambient {
        return Ok(());
    }
    let sender = same_site::sender(parts);
    let header = parts.headers.get("x-csrf-token").and_then(|value| value.to_str().ok());
    let said = params.text("csrf").or(header);
    let has_token = said.zip(visitor.csrf.as_deref()).is_some_and(|(said, wanted)| {
        // Hashes compare in constant time.
        blake3::hash(said.as_bytes()) == blake3::hash(wanted.as_bytes())
    });
    let is_ours = match sender {
        // A request that says itself that it comes from elsewhere is refused also with a right token, which may have
        // leaked.
        Sender::Other => false,
        // The cookie of a session asks for the token whatever else is said.
        _ if visitor.has_session => has_token,
        // Without a session there may be no page that a token could come from, as for a script behind the proxy.
        Sender::SameSite | Sender::NoBrowser => true,
        Sender::Unknown => has_token,
    };
    if is_ours {
        return Ok(());
    }
    Err(Refusal::forbidden(
        "the request may come from a page of another site: it has no `csrf` token of this session, or names another origin; \
         load the page again, or use a bearer token",
    ))
}

/// Returns a filename for a download that holds nothing but letters, digits, `-` and `.`.
pub(crate) fn file_name(text: &str) -> String {
    // A quote or a line break would end the header, and a slash would lead out of the folder of downloads.
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.');
    text.chars().filter(|char| plain(*char)).take(80).collect()
}

/// Reads bytes from their Base64 text.
pub(crate) fn from_base64(text: &str) -> Result<Vec<u8>, Refusal> {
    base64::engine::general_purpose::STANDARD
        .decode(text.trim())
        .map_err(|error| Refusal::invalid(format!("`payload-base64` is not Base64: {error}")))
}
