use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dlq_testkit::fixtures::letter;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::bench::Bench;
use crate::common::{Ran, dlq};

const SECRET: &str = "s3c/r@t";
const INFO: &[u8] = b"INFO {\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"2.11.0\",\"go\":\"x\",\
    \"host\":\"x\",\"port\":1,\"max_payload\":1024,\"proto\":1,\"client_id\":1,\"headers\":true,\"auth_required\":true}\r\n";
const ENCODED: &str = "s3c%2Fr%40t";

/// A folder with a configuration file.
struct Home {
    folder: TempDir,
}

impl Home {
    fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Self { folder };
        std::fs::write(home.config(), config).unwrap();
        home.chmod(0o600);
        home
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    fn chmod(&self, mode: u32) {
        std::fs::set_permissions(self.config(), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_CONFIG", self.config()).env("HOME", self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }
}

#[tokio::test]
async fn the_nearest_word_on_where_counts() {
    let [one, two, three] = [1, 2, 3].map(|count| Bench::with((0..count).map(letter).collect()));
    let (one, two, three) = (one.await, two.await, three.await);
    let home = Home::with(&format!(
        "default = \"one\"\n[contexts.one]\nfrom = \"{}\"\n[contexts.two]\nfrom = \"sqlite://${{TWO}}\"\n",
        one.url(),
    ));
    let count = |args: &[&str], environment: &[(&str, &str)]| -> String {
        let mut command = home.command(&[&["count"], args].concat());
        command.env("TWO", two.path()).envs(environment.iter().copied());
        Ran::from(command.output().unwrap()).ok().out
    };
    let three = three.url();
    assert_eq!(count(&[], &[]), "1\n", "the default");
    assert_eq!(count(&[], &[("DLQ_CONTEXT", "two")]), "2\n");
    assert_eq!(count(&[], &[("DLQ_CONTEXT", "two"), ("DLQ_FROM", &three)]), "3\n");
    assert_eq!(count(&["--context", "two"], &[("DLQ_FROM", &three)]), "2\n");
    assert_eq!(count(&["--context", "two", "--from", &three], &[]), "3\n");
    assert_eq!(count(&["--from", "two"], &[("DLQ_FROM", &three)]), "2\n", "a name");
    assert_eq!(count(&[], &[("DLQ_FROM", "two"), ("DLQ_CONTEXT", "")]), "2\n");
}

/// What a server is told that says it is NATS, and what the command says.
async fn connect_of(home: &Home, listener: &TcpListener) -> (String, Ran) {
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
    let home = Home::with("");
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

#[test]
fn a_password_is_in_no_error() {
    for url in [
        "postgres://ana:s3cret@h/db",
        "postgres://ana:s3c/s3cret@h/db",
        "postgres://h/db?password=s3cret&sslpassword=s3cret",
        "postgresql:/ana:s3cret@h/db",
        "redis://:s3cret@h",
        "s3cret@h",
        "kafka://ana:%s3cret@h:1/t",
        "nats://s3cret@127.0.0.1:1/DLQ",
    ] {
        let ran = Ran::from(dlq(&["list", "--from", url]).output().unwrap());
        assert_ne!(ran.code, 0);
        assert!(!ran.err.contains("s3cret") && !ran.err.is_empty(), "{url}: {}", ran.err);
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_context_is_said() {
    let home = Home::with(
        "[contexts.prod]\nfrom = \"sqlite://${NO_SUCH_VARIABLE}/x\"\n\
         [contexts.fails]\nfrom = \"nats://ops@h/DLQ\"\npassword_command = \"echo s3cret; exit 7\"\n\
         [contexts.both]\nfrom = \"nats://ops@h/DLQ\"\npassword_command = \"x\"\npassword_file = \"y\"\n\
         [contexts.nobody]\nfrom = \"nats://h/DLQ\"\npassword_command = \"echo s3cret\"\n",
    );
    for (args, says) in [
        (&["list", "--context", "dev"] as &[&str], "there is no context `dev`; "),
        (&["list", "--context", "dev"], " has: both, fails, nobody, prod"),
        (&["list", "--from", "dev"], "`dev` does not name dead letters"),
        (&["context", "use", "dev"], "there is no context `dev`"),
        (
            &["list", "--context", "prod"],
            "context `prod`: the variable NO_SUCH_VARIABLE is not set",
        ),
        (&["list", "--context", "fails"], "password_command failed (exit status: 7)"),
        (&["list", "--context", "both"], "leave one of them out"),
        (&["list", "--context", "nobody"], "has no user to whom the password belongs"),
        (&["list"], "where are the dead letters?"),
    ] {
        let ran = home.run(args);
        assert!(ran.code != 0 && ran.err.contains(says), "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
    std::fs::write(home.config(), "[contexts.prod]\nfrom = \"x\"\nform = \"y\"\n").unwrap();
    let ran = home.run(&["list"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("config.toml:3:1: unknown field `form`"), "{}", ran.err);
    std::fs::remove_file(home.config()).unwrap();
    let ran = home.run(&["list"]);
    assert!(ran.code == 2 && ran.err.contains("cannot read"), "{}", ran.err);
}

#[test]
fn the_file_is_found_where_the_platform_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    for (variable, below) in [("XDG_CONFIG_HOME", "xdg/dlq"), ("HOME", "home/.config/dlq")] {
        let place = folder.path().join(below);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(
            place.join("config.toml"),
            format!("[contexts.{variable}]\nfrom = \"sqlite://x\"\n"),
        )
        .unwrap();
        let mut command = dlq(&["context", "list"]);
        command.env_remove("DLQ_CONFIG").env_remove("XDG_CONFIG_HOME").env("HOME", folder.path());
        command.env(variable, folder.path().join(below.split('/').next().unwrap()));
        let ran = Ran::from(command.output().unwrap()).ok();
        assert!(ran.out.contains(variable), "{}", ran.out);
    }
    let mut none = dlq(&["context", "list"]);
    none.env_remove("DLQ_CONFIG")
        .env_remove("XDG_CONFIG_HOME")
        .env("HOME", folder.path().join("empty"));
    assert!(Ran::from(none.output().unwrap()).ok().err.contains("no contexts"));
}

#[test]
fn a_file_that_others_read_is_warned_of_when_it_holds_a_password() {
    let home = Home::with("[contexts.prod]\nfrom = \"nats://ops:s3cret@h/DLQ\"\n");
    assert_eq!(home.run(&["context", "list"]).ok().err, "");
    home.chmod(0o640);
    let warned = home.run(&["context", "list"]).ok();
    assert!(warned.err.contains("others can read it"), "{}", warned.err);
    assert!(!(warned.out + &warned.err).contains("s3cret"));
    std::fs::write(home.config(), "[contexts.prod]\nfrom = \"nats://ops:${PW}@h/DLQ\"\n").unwrap();
    assert_eq!(home.run(&["context", "list"]).ok().err, "", "it holds none");
}

#[test]
fn choosing_a_default_changes_one_line() {
    let rest = "# mine\n[contexts.a]\nfrom = \"sqlite://a\" # here\n\n[contexts.b]\nfrom = \"sqlite://b\"\n";
    let home = Home::with(rest);
    home.chmod(0o640);
    let link = home.folder.path().join("link.toml");
    std::os::unix::fs::symlink(home.config(), &link).unwrap();
    for name in ["b", "a"] {
        let mut command = home.command(&["context", "use", name]);
        Ran::from(command.env("DLQ_CONFIG", &link).output().unwrap()).ok();
        let text = std::fs::read_to_string(home.config()).unwrap();
        assert_eq!(text, format!("default = \"{name}\"\n{rest}"));
        let shown = home.run(&["context", "show", "-o", "json"]).ok().json();
        assert_eq!((&shown["name"], &shown["default"]), (&name.into(), &true.into()));
    }
    assert!(link.is_symlink(), "the link stays one");
    assert_eq!(std::fs::metadata(home.config()).unwrap().permissions().mode() & 0o777, 0o640);
    let left: Vec<_> = std::fs::read_dir(home.folder.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
