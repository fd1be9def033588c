//! What does not compile, and what it says: one mistake per file.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/stack/fail/*.rs");
    cases.compile_fail("tests/ui/dlq_handler/fail/*.rs");
    cases.compile_fail("tests/ui/classify/fail/*.rs");
    cases.pass("tests/ui/*/pass/*.rs");
}
