//! Golden records: dead letters as each system writes them, header by header.
