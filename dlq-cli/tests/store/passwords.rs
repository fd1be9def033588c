//! A password on its way from a context to a server.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::common::Ran;
use crate::contexts::ConfigFolder;

const SECRET: &str = "s3c/r@t";
const INFO: &[u8] = b"INFO {\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"2.11.0\",\"go\":\"x\",\
    \"host\":\"x\",\"port\":1,\"max_payload\":1024,\"proto\":1,\"client_id\":1,\"headers\":true,\"auth_required\":true}\r\n";
const ENCODED: &str = "s3c%2Fr%40t";

/// What a server is told that says it is NATS, and what the command says.
async fn connect_of(home: &ConfigFolder, listener: &TcpListener) -> (String, Ran) {
    let mut command = home.command(&["count", "--context", "prod"]);
    command.env("RUST_LOG", "trace").env("PW", SECRET);
    let mut command = tokio::process::Command::from(command);
    let child = command.kill_on_drop(true).output();
    let serve = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(INFO).await.unwrap();
        let mut socket = BufReader::new(socket);
        let mut line = String::new();
        socket.read_line(&mut line).await.unwrap();
        socket.write_all(b"-ERR 'Authorization Violation'\r\n").await.unwrap();
        line
    };
    let both = async { tokio::join!(serve, child) };
    let (line, output) =
        timeout(Duration::from_secs(60), both).await.expect("it connects and ends");
    (line, output.unwrap().into())
}

/// However the password comes, the server gets it, and nobody sees it: not with every debug line there is.
#[tokio::test]
async fn a_password_reaches_the_server_and_not_the_screen() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let home = ConfigFolder::with("");
    std::fs::write(home.folder.path().join("pw"), format!("{SECRET}\n")).unwrap();
    std::fs::set_permissions(home.folder.path().join("pw"), std::fs::Permissions::from_mode(0o600))
        .unwrap();
    for how in [
        format!("from = \"nats://ops@{at}/DLQ\"\npassword_command = \"printf '%s' '{SECRET}'\""),
        format!("from = \"nats://ops@{at}/DLQ\"\npassword_file = \"pw\""),
        format!("from = \"nats://ops@{at}/DLQ\"\npassword_file = \"~/pw\""),
        format!("from = \"nats://ops:${{PW}}@{at}/DLQ\""),
        format!("from = \"nats://ops:{ENCODED}@{at}/DLQ\""),
    ] {
        std::fs::write(home.config(), format!("[contexts.prod]\n{how}\n")).unwrap();
        let (connect, ran) = connect_of(&home, &listener).await;
        assert!(connect.contains(&format!("\"pass\":\"{SECRET}\"")), "{how}: {connect}");
        for text in [&ran.out, &ran.err] {
            assert!(!text.contains(SECRET) && !text.contains(ENCODED), "{how}: {text}");
        }
        let shown = home.run(&["context", "show", "prod"]).ok();
        let listed = home.run(&["context", "list", "-o", "json"]).ok();
        for ran in [shown, listed] {
            assert!(!ran.out.contains(SECRET) && !ran.out.contains(ENCODED), "{}", ran.out);
            assert!(ran.out.contains(&format!("nats://ops@{at}/DLQ")), "{}", ran.out);
        }
    }
}
