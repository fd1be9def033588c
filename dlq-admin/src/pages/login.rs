use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use maud::html;

use super::parts::csrf;
use super::{frame, to_overview};
use crate::access::Kind;
use crate::call::{Call, html as respond_html, see_other};
use crate::door::{self, COOKIE};
use crate::refusal::Refusal;

pub(crate) async fn form(call: Call) -> Result<Response, Refusal> {
    // Without tokens there is nothing to type here, and a form that never lets anybody in would only puzzle.
    if !matches!(call.console.access.0, Kind::Tokens(_)) || call.visitor.has_session {
        return to_overview(&call.console, &call.root);
    }
    Ok(show(&call, None))
}

fn show(call: &Call, refusal: Option<&Refusal>) -> Response {
    let body = html! {
        h1 { "Log in" }
        @if let Some(refusal) = refusal { p.error role="alert" { (refusal.message) } }
        form.narrow method="post" action=(call.link("login")) {
            (csrf(&call.visitor))
            div.field {
                label for="token" { "Token" }
                // Named so for password managers, which then keep the token.
                input id="token" name="token" type="password" required autocomplete="current-password";
            }
            button type="submit" { "Log in" }
        }
    };
    let status = refusal.map_or(StatusCode::OK, |refusal| refusal.status);
    let page = frame(&call.console, &call.root, "Log in", None, None, None, body);
    let mut response = respond_html(status, page);
    if let Some(seconds) = refusal.and_then(|refusal| refusal.retry_after) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(crate) async fn login(call: Call) -> Result<Response, Refusal> {
    let Kind::Tokens(tokens) = &call.console.access.0 else {
        return to_overview(&call.console, &call.root);
    };
    let secret = call.params.text("token").unwrap_or_default().trim();
    let token = match door::guess(&call.console, tokens, call.source, secret.as_bytes()) {
        Ok(token) => token,
        // The form is shown again, with the status of the refusal for programs and for logs of proxies.
        Err(refusal) => return Ok(show(&call, Some(&refusal))),
    };
    // A session that somebody else may have put into this browser ends with the login.
    if let Some(former) = door::session_id(&call.headers) {
        call.console.sessions.end(former);
    }
    let id = call.console.sessions.begin(&token.name, token.role).map_err(|error| {
        let text = format!("no session can be begun: {error}");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    })?;
    tracing::info!(who = token.name, role = %token.role, "logged in");
    let mut response = to_overview(&call.console, &call.root)?;
    set_cookie(&call, &mut response, &format!("{COOKIE}={id}"))?;
    Ok(response)
}

pub(crate) async fn logout(call: Call) -> Result<Response, Refusal> {
    // The session ends here and not only in the browser, so that a copy of the cookie is worth nothing.
    if let Some(id) = door::session_id(&call.headers) {
        call.console.sessions.end(id);
    }
    let mut response = see_other(&call.link("login"))?;
    set_cookie(&call, &mut response, &format!("{COOKIE}=; Max-Age=0"))?;
    Ok(response)
}

/// Without a path the cookie is of the folder of the login page: the place where the router is mounted, also behind a proxy
/// that cuts it off.
fn set_cookie(call: &Call, response: &mut Response, cookie: &str) -> Result<(), Refusal> {
    // Whoever forges this header only keeps their own browser from sending the cookie without TLS.
    let proto = call.headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
    let secure = if proto == Some("https") { "; Secure" } else { "" };
    // The script never needs the cookie, and no link of another site has to work while somebody is logged in.
    let cookie = format!("{cookie}; HttpOnly; SameSite=Strict{secure}");
    let value = HeaderValue::from_str(&cookie)
        .map_err(|_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no session can be begun"))?;
    response.headers_mut().insert(header::SET_COOKIE, value);
    Ok(())
}
