//! What does not compile, and what it says: one mistake per file. What compiles is in tests of its own, so that all of this
//! is checked at once and nothing of it is built.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*/fail/*.rs");
}
