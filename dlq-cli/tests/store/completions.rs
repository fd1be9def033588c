use std::process::Command;

use crate::common::{Ran, dlq};

fn script(shell: &str) -> String {
    Ran::from(dlq(&["completions", shell]).output().unwrap()).ok().out
}

#[test]
fn every_shell_has_its_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        // Fish writes long flags without the dashes.
        for word in ["completions", "fingerprint", "no-trunc"] {
            assert!(script.contains(word), "{word} is not in the script of {shell}");
        }
    }
    let unknown = Ran::from(dlq(&["completions", "tcsh"]).output().unwrap());
    assert_eq!(unknown.code, 2, "{}", unknown.err);
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    Ran::from(dlq(&["man", pages.to_str().unwrap()]).output().unwrap()).ok();
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("dlq.1").contains("dead letters"), "the page of the command");
    assert!(page("dlq-replay.1").contains("canary"), "the page of a verb");
    assert!(page("dlq-op-watch.1").contains("operation"), "the page of a verb's verb");

    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = Ran::from(dlq(&["man", file.to_str().unwrap()]).output().unwrap());
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert!(refused.err.contains("cannot write manual pages to "), "{}", refused.err);
}

/// What bash proposes for these words, the last of which is being typed.
fn proposed(words: &[&str]) -> Vec<String> {
    let (index, last) = (words.len() - 1, words[words.len() - 1]);
    let before = words[index - 1];
    let line = format!(
        "{}\nCOMP_WORDS=({})\nCOMP_CWORD={index}\n_dlq dlq '{last}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash"),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
    );
    // It is too long for an argument.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), line).unwrap();
    let ran = Command::new("bash").arg("--norc").arg(file.path()).output().unwrap();
    let ran = Ran::from(ran).ok();
    assert_eq!(ran.err, "");
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_and_flags() {
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no bash here to try the completions in");
        return;
    }
    assert_eq!(proposed(&["dlq", "mig"]), ["migrate"]);
    assert_eq!(proposed(&["dlq", "op", "res"]), ["resume"]);
    assert_eq!(proposed(&["dlq", "list", "--subj"]), ["--subject"]);
    assert_eq!(proposed(&["dlq", "context", "use", "--conte"]), ["--context"]);
    let formats = proposed(&["dlq", "list", "--output", ""]);
    assert_eq!(formats, ["table", "json", "jsonl"]);
}
