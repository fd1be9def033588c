//! `HandlerError`, and what handlers may return.

use std::time::Duration;

use bytes::Bytes;
use dlq_tower::core::{BoxError, ErrorClass, Reason};
use dlq_tower::handler::{HandlerError, ResultExt, handler};
use dlq_tower::{Classify, dlq_handler};
use tokio::time::Instant;

use crate::fixture::{bytes, dies, succeeds};

#[derive(Debug, thiserror::Error, Classify)]
#[error("refused")]
#[classify(permanent, group = "refusals")]
struct Refused;

#[dlq_handler(max_attempts = 2, backoff = constant("1ms"))]
async fn import(payload: Bytes) -> Result<(), HandlerError> {
    match &payload[..] {
        b"parse" => "x".parse::<u32>().map(drop).permanent()?,
        b"io" => Err(std::io::Error::other("disk"))?,
        b"wait" => Err(std::io::Error::other("busy")).retry_after(Duration::from_secs(4))?,
        b"message" => return Err(HandlerError::msg("nothing to import").permanent()),
        b"refused" => return Err(HandlerError::classified(Refused)),
        b"twice" => Err(HandlerError::msg("first").permanent()).transient()?,
        _ => {}
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_keeps_type_class_and_place() {
    let stack = import::handler().build().unwrap();
    succeeds(&stack, bytes("fine")).await;

    let dead = dies(&stack, bytes("parse")).await;
    let failure = dead.history.last().unwrap();
    assert_eq!((dead.reason, dead.attempts), (Reason::Permanent, 1));
    assert!(failure.error_type.ends_with("ParseIntError"), "{failure:?}");
    assert!(failure.message().contains("invalid digit"), "{failure:?}");
    let line = failure.location.as_deref().unwrap();
    assert!(line.contains("tests/handler/errors.rs:21:"), "{line}");

    let dead = dies(&stack, bytes("io")).await;
    let failure = dead.history.last().unwrap();
    assert_eq!((dead.reason, dead.attempts), (Reason::Exhausted, 2));
    assert!(failure.error_type.ends_with("io::error::Error"), "{failure:?}");
    let line = failure.location.as_deref().unwrap();
    assert!(line.contains("tests/handler/errors.rs:22:"), "{line}");

    let begin = Instant::now();
    let _ = dies(&stack, bytes("wait")).await;
    assert_eq!(begin.elapsed().as_secs(), 4);

    let dead = dies(&stack, bytes("message")).await;
    assert_eq!(dead.history.last().unwrap().message(), "nothing to import");
    assert_eq!(dead.class, ErrorClass::Permanent);

    let dead = dies(&stack, bytes("refused")).await;
    assert_eq!(dead.class, ErrorClass::Permanent);
    assert_eq!(dead.history.last().unwrap().group.as_deref(), Some("refusals"));

    assert_eq!(dies(&stack, bytes("twice")).await.class, ErrorClass::Transient);
}

#[tokio::test]
async fn a_handler_may_return_any_error_or_nothing() {
    #[dlq_handler(max_attempts = 1)]
    async fn text() -> Result<(), String> {
        Err("as text".to_owned())
    }
    #[dlq_handler(max_attempts = 1)]
    async fn boxed() -> Result<(), BoxError> {
        Err("boxed".into())
    }
    #[dlq_handler]
    async fn nothing() {}
    let dead = dies(&text::handler().build().unwrap(), bytes("")).await;
    assert_eq!(dead.history.last().unwrap().message(), "as text");
    let dead = dies(&boxed::handler().build().unwrap(), bytes("")).await;
    assert_eq!(dead.history.last().unwrap().message(), "boxed");
    succeeds(&nothing::handler().build().unwrap(), bytes("")).await;
    succeeds(&handler("plain", || async {}).build().unwrap(), bytes("")).await;
}

/// Whether backtraces are taken is decided once for a process: each answer needs one of its own.
#[test]
fn a_backtrace_is_kept_where_it_is_asked_for() {
    for asked in ["1", "0"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "errors::a_backtrace_as_this_process_was_asked"])
            .env("RUST_LIB_BACKTRACE", asked)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backtrace_as_this_process_was_asked() {
    let stack = import::handler().build().unwrap();
    let dead = dies(&stack, bytes("message")).await;
    let backtrace = dead.history.last().unwrap().backtrace.as_deref();
    match std::env::var("RUST_LIB_BACKTRACE").as_deref() {
        Ok("1") => assert!(backtrace.is_some_and(|text| text.contains("import")), "{backtrace:?}"),
        Ok("0") => assert_eq!(backtrace, None),
        _ => {}
    }
}
