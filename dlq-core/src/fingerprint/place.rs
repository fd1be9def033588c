//! Names of types and files without what a build changes.

use std::borrow::Cow;

/// The path of a type or function without generic arguments, marks of closures and `impl` blocks, and the hash that
/// symbols carry.
pub(super) fn type_path(name: &str) -> Cow<'_, str> {
    let is_hash = |part: &str| {
        part.len() == 17
            && part.starts_with('h')
            && part.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit())
    };
    let is_kept = |part: &&str| !part.is_empty() && !part.starts_with('{') && !is_hash(part);
    // Most names are paths, and are kept whole.
    let is_path =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
    if is_path && name.split("::").all(|part| is_kept(&part)) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let mut before = ' ';
    for char in name.chars() {
        match char {
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if before != '-' => depth = depth.saturating_sub(1),
            char if depth == 0 => out.push(char),
            _ => {}
        }
        before = char;
    }
    let kept: Vec<_> = out.split("::").filter(is_kept).collect();
    Cow::Owned(kept.join("::"))
}

/// The file of `file:line:column`, with `/` between its folders. A file of a dependency starts at its crate, without
/// the version and the registry's folder on the machine that built it.
pub(super) fn file(location: &str) -> Cow<'_, str> {
    let mut file = location;
    // Line and column stand behind the file, and a path may have colons of its own.
    for _ in 0..2 {
        match file.rsplit_once(':') {
            Some((rest, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => file = rest,
            _ => break,
        }
    }
    let is_plain = |part: &[u8]| part != b"/registry/src/";
    if !file.as_bytes().contains(&b'\\') && file.as_bytes().windows(14).all(is_plain) {
        return Cow::Borrowed(file);
    }
    let file: Cow<str> = Cow::Owned(file.replace('\\', "/"));
    let Some((_, inside)) = file.rsplit_once("/registry/src/") else { return file };
    let Some((_, inside)) = inside.split_once('/') else { return file };
    let Some((package, path)) = inside.split_once('/') else { return file };
    let name = package
        .match_indices('-')
        .find(|(at, _)| package[at + 1..].starts_with(|c: char| c.is_ascii_digit()))
        .map_or(package, |(at, _)| &package[..at]);
    Cow::Owned(format!("{name}/{path}"))
}
