//! The store in memory passes every check.

dlq_testkit::store_conformance!(dlq_testkit::store::MemoryFixture);
