//! A password on its way to a server.

use std::time::Duration;

use dlq_testkit::fixtures::letter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::common::Ran;
use crate::fixture::{Bench, command};

const SECRET: &str = "s3c/r@t";
const ENCODED: &str = "s3c%2Fr%40t";

/// With every debug line there is, of every verb.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_the_password() {
    let Some(bench) = Bench::with("secret", vec![letter(1)]).await else { return };
    let urls = [
        bench.schema.url_of(&format!("postgres:{ENCODED}")),
        format!("{}&password={ENCODED}", bench.schema.url()),
    ];
    for url in &urls {
        for args in [
            &["count"] as &[&str],
            &["check"],
            &["migrate"],
            &["mark", "resolved", "--all", "--yes"],
            &["show", "zz"],
            &["count", "--table-that-is-not-there"],
        ] {
            let mut command = command(url, args);
            let ran: Ran = command.env("RUST_LOG", "trace").output().unwrap().into();
            for text in [&ran.out, &ran.err] {
                assert!(!text.contains(SECRET) && !text.contains(ENCODED), "{args:?}: {text}");
            }
        }
        assert_eq!(crate::fixture::run(url, &["count"]).ok().out, "1\n");
    }
}

async fn message(socket: &mut TcpStream) -> Vec<u8> {
    let length = socket.read_u32().await.unwrap();
    let mut body = vec![0; length as usize - 4];
    socket.read_exact(&mut body).await.unwrap();
    body
}

/// A server that repeats what it was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_repeats_the_password_is_not_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url =
        format!("postgres://ana:{ENCODED}@{}/db?sslmode=disable", listener.local_addr().unwrap());
    let mut command = tokio::process::Command::from(command(&url, &["count"]));
    let child = command.env("RUST_LOG", "trace").kill_on_drop(true).output();
    let serve = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        message(&mut socket).await;
        // The password in clear, please.
        socket.write_all(b"R\0\0\0\x08\0\0\0\x03").await.unwrap();
        assert_eq!(socket.read_u8().await.unwrap(), b'p');
        let told = message(&mut socket).await;
        let mut error = b"SFATAL\0VFATAL\0C28P01\0Mnot this password: ".to_vec();
        error.extend_from_slice(&told);
        error.push(0);
        socket.write_u8(b'E').await.unwrap();
        socket.write_u32(error.len() as u32 + 4).await.unwrap();
        socket.write_all(&error).await.unwrap();
        told
    };
    let both = async { tokio::join!(serve, child) };
    let (told, output) = timeout(Duration::from_secs(60), both).await.expect("it ends");
    assert_eq!(told, format!("{SECRET}\0").as_bytes());
    let ran = Ran::from(output.unwrap());
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(!ran.err.contains(SECRET) && !ran.err.contains(ENCODED), "{}", ran.err);
    assert!(ran.err.contains("postgres://ana@127.0.0.1"), "{}", ran.err);
}
