use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use dlq_core::Message;
use dlq_testkit::fixtures::letter;
use tempfile::TempDir;

use crate::bench::Bench;
use crate::common::{Ran, dlq};

/// A folder with a configuration file.
pub(crate) struct ConfigFolder {
    pub(crate) folder: TempDir,
}

impl ConfigFolder {
    pub(crate) fn with(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Self { folder };
        std::fs::write(home.config(), config).unwrap();
        home.chmod(0o600);
        home
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    pub(crate) fn chmod(&self, mode: u32) {
        std::fs::set_permissions(self.config(), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = dlq(args);
        command.env("DLQ_CONFIG", self.config()).env("HOME", self.folder.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }
}

#[tokio::test]
async fn the_nearest_word_on_where_counts() {
    let [one, two, three] = [1, 2, 3].map(|count| Bench::with((0..count).map(letter).collect()));
    let (one, two, three) = (one.await, two.await, three.await);
    let home = ConfigFolder::with(&format!(
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
        // Where the same word stands in what is shown, it is struck out.
        "nats://ana:s3cret@127.0.0.1:1/s3cret",
    ] {
        let ran = Ran::from(dlq(&["list", "--from", url]).output().unwrap());
        assert_ne!(ran.code, 0);
        assert!(!ran.err.contains("s3cret") && !ran.err.is_empty(), "{url}: {}", ran.err);
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_context_is_said() {
    let home = ConfigFolder::with(
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
            "context `prod`: cannot expand the URL: environment variable NO_SUCH_VARIABLE is not set",
        ),
        (&["list", "--context", "fails"], "password_command failed (exit status: 7)"),
        (&["list", "--context", "both"], "remove one of them"),
        (&["list", "--context", "nobody"], "the URL has no user"),
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
    let home = ConfigFolder::with("[contexts.prod]\nfrom = \"nats://ops:s3cret@h/DLQ\"\n");
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
    let home = ConfigFolder::with(rest);
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

/// Masked parts are seen by those alone who ask for them, and a masked letter does not come back as if it were whole.
#[tokio::test]
async fn what_rules_mask_is_seen_with_unmasked_alone() {
    let secret = |n, payload: &str| {
        let message =
            Message::new("s", payload.to_owned()).with_header("Authorization", "s3cret-h");
        letter(n).with_message(message)
    };
    let (json, text) = (secret(0, r#"{"card":"s3cret-p","n":12.50}"#), secret(1, "card=s3cret-t"));
    let mut plain = letter(2);
    plain.message = Message::new("s", r#"{"n":1}"#);
    let bench = Bench::with(vec![json.clone(), text.clone(), plain]).await;
    let home = ConfigFolder::with(&format!(
        "mask = [\"headers.authorization\"]\n[contexts.here]\nfrom = \"{}\"\nmask = [\"$.card\"]\n",
        bench.url()
    ));
    let run = |args: &[&str]| home.run(&[&["--context", "here"], args].concat());
    let id = json.id.to_string();
    let edit = [
        "edit",
        &id,
        "--payload-text",
        r#"{"card":"s3cret-q","n":13}"#,
        "--header",
        "authorization=s3cret-i",
    ];
    let edited = run(&[&edit as &[&str], &["--yes"]].concat()).ok();
    assert!(edited.out.contains("13") && !edited.out.contains("s3cret"), "{}", edited.out);
    let file = home.folder.path().join("masked").display().to_string();
    for (args, masks) in [
        (&["show", &id] as &[&str], true),
        (&["show", &id, "-o", "json"], true),
        (&["show", &id, "--payload"], true),
        (&["show", &text.id.to_string()], true),
        (&["audit", "--diff"], false),
        (&["audit", "-o", "json"], false),
        (&["export"], true),
        (&["export", "--to", &file], true),
    ] {
        let ran = run(args).ok();
        assert!(!ran.out.contains("s3cret"), "{args:?}: {}", ran.out);
        assert_eq!(ran.err.contains("--unmasked"), masks, "{args:?}: {}", ran.err);
        if args.contains(&"--to") {
            continue;
        }
        let whole = run(&[args, &["--unmasked"]].concat()).ok();
        assert!(
            whole.out.contains("s3cret") && !whole.err.contains("masked"),
            "{args:?}: {}",
            whole.out
        );
    }
    // Without the context there are the rules of the file alone.
    let shown = home.run(&["show", &id, "--from", &bench.url()]).ok().out;
    assert!(
        shown.contains("s3cret-q") && !shown.contains("s3cret-h") && !shown.contains("s3cret-i"),
        "{shown}"
    );
    let shown = run(&["show", &text.id.to_string()]).ok().out;
    assert!(shown.contains("*** 13 bytes that are not JSON, BLAKE3 "), "{shown}");
    let other = Bench::with(vec![]).await;
    let imported = home.run(&["import", &file, "--from", &other.url()]);
    assert_eq!(
        (imported.code, imported.out.as_str()),
        (3, "imported: 1 letters, 1 stored, 2 bad lines\n")
    );
    assert!(imported.err.contains("export it again with --unmasked"), "{}", imported.err);
    let written = run(&["edit", &id, "--payload-text", r#"{"card":"***","n":14}"#, "--yes"]);
    assert_eq!(written.code, 2);
    assert!(written.err.contains("dlq show --payload --unmasked"), "{}", written.err);
}
