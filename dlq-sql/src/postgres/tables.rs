//! The tables of the first version, in SQL.
//!
//! A row of a btree index has at most 2,704 bytes, and names and keys that come with messages may have more. Their indexes
//! hold the beginning or a hash of them.

use super::names::Names;

/// The columns by which letters are counted.
pub(super) const COUNTED: &str = "status, reason, cause, class, consumer, subject, fingerprint";

pub(super) fn version_1(names: &Names) -> String {
    [letters(names), companions(names), counting(names), readable(names)].concat()
}

/// Indexes that came with the second version.
pub(super) fn version_2(names: &Names) -> Vec<(String, String)> {
    let index = |name: &str, columns: &str| {
        (format!("{}_{name}", names.table), format!("ON {} {columns}", names.letters))
    };
    vec![
        index("by_subject", "(left(subject, 400), created_at, letter_id)"),
        index(
            "by_type",
            "(left(event_type, 400), created_at, letter_id) WHERE event_type IS NOT NULL",
        ),
        index("sending", "(operation, item) WHERE claim_sender IS NOT NULL"),
    ]
}

/// Names of calls, which came with the third version: a call that is made again after a lost answer finds what it has
/// done. Tables that are made again lack the columns, so this is said to them, too.
///
/// A backup may read the tables for hours, and whoever claims would wait behind a migration that waits for it: the
/// migration gives up instead.
pub(super) fn version_3(names: &Names) -> String {
    let Names { idempotency, marks, .. } = names;
    format!(
        "SET LOCAL lock_timeout = '5s';\n\
         ALTER TABLE {idempotency} ADD COLUMN IF NOT EXISTS call bytea;\n\
         ALTER TABLE {marks} ADD COLUMN IF NOT EXISTS call bytea;\n\
         SET LOCAL lock_timeout = 0;\n"
    )
}

/// Small texts beside the letters: JSON by kind and name.
///
/// Rights on the letters are granted here, too: a consumer whose user was granted the tables of an earlier version
/// could write no death otherwise by which a letter leaves its group.
pub(super) fn version_4(names: &Names) -> String {
    let Names { documents, letters, .. } = names;
    format!(
        r#"
CREATE TABLE {documents} (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (kind, name)
);
DO $body$
DECLARE one record;
BEGIN
    FOR one IN
        SELECT a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = to_regclass('{letters}')
            AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON {documents} TO %s', one.privilege_type,
            CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE one.grantee::regrole::text END);
    END LOOP;
END
$body$;
"#
    )
}

/// An operation that is sent through an outbox takes its items in order, whoever their consumers are, and would look at all
/// that were sent before.
pub(super) fn version_5(names: &Names) -> Vec<(String, String)> {
    vec![(
        format!("{}_items_to_send", names.table),
        format!("ON {} (operation, idx) WHERE outcome = 'queued'", names.items),
    )]
}

fn letters(names: &Names) -> String {
    // Claims and finishes rewrite a row several times, so that dead rows are removed long before they are a fifth of
    // the table, which is the default. Texts are compared byte by byte (`"C"`): equality and order are the same on
    // every server. Ids of events may be of any length, for which only a hash index has room. A sequence gives out
    // tokens without a lock, and takes none back with a transaction (G6).
    let Names { letters, fences, table, .. } = names;
    format!(
        r#"
CREATE TABLE {letters} (
    letter_id bytea PRIMARY KEY,
    generation bigint NOT NULL,
    event_id text COLLATE "C",
    subject text COLLATE "C" NOT NULL,
    event_type text COLLATE "C",
    consumer text COLLATE "C" NOT NULL,
    service text COLLATE "C",
    status text COLLATE "C" NOT NULL,
    resolution text COLLATE "C",
    reason text COLLATE "C" NOT NULL,
    cause text COLLATE "C",
    class text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    error text COLLATE "C" NOT NULL,
    -- The error in lower case; NULL when that is the same text.
    error_search text COLLATE "C",
    attempts bigint NOT NULL,
    deliveries bigint NOT NULL,
    crashes bigint NOT NULL,
    escalations bigint NOT NULL,
    retry_count bigint NOT NULL DEFAULT 0,
    replays bigint NOT NULL DEFAULT 0,
    seen bigint NOT NULL DEFAULT 1,
    confirmed boolean NOT NULL DEFAULT true,
    retry_after timestamptz,
    -- When it can be claimed: when it is due, or when its lease ends.
    available_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Nanoseconds since the Unix epoch, as the consumer gave it.
    died_at bigint NOT NULL,
    last_retry_at timestamptz,
    -- Nanoseconds since the Unix epoch, as the producer gave it.
    published_at bigint,
    operation bytea,
    item bigint,
    claim_fence bigint NOT NULL DEFAULT 0,
    claim_until timestamptz,
    claim_former text COLLATE "C",
    claim_owner text COLLATE "C",
    -- The sender of a letter that is on its way to a broker; NULL otherwise.
    claim_sender text COLLATE "C",
    finished_fence bigint,
    lapses bigint NOT NULL DEFAULT 0,
    dedup_key bytea,
    cluster text COLLATE "C" NOT NULL,
    transport text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    partition bigint,
    position text COLLATE "C" NOT NULL,
    attributes text COLLATE "C" NOT NULL,
    headers text COLLATE "C" NOT NULL,
    history text COLLATE "C" NOT NULL,
    key bytea,
    data bytea,
    -- The bindings of the bytes before each edit, one after another; NULL when it was not edited.
    edited_from bytea
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX "{table}_by_age" ON {letters} (created_at, letter_id);
CREATE INDEX "{table}_by_status" ON {letters} (status, created_at, letter_id);
CREATE INDEX "{table}_by_consumer" ON {letters} (left(consumer, 400), created_at, letter_id);
CREATE INDEX "{table}_by_fingerprint" ON {letters} (fingerprint, left(consumer, 400), created_at, letter_id);
CREATE INDEX "{table}_by_event" ON {letters} USING hash (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX "{table}_available" ON {letters} (available_at, created_at, letter_id)
    WHERE available_at IS NOT NULL;
CREATE INDEX "{table}_available_to" ON {letters} (left(consumer, 400), available_at, created_at, letter_id)
    WHERE available_at IS NOT NULL;
CREATE INDEX "{table}_resolved" ON {letters} (updated_at) WHERE status = 'resolved';
CREATE INDEX "{table}_by_operation" ON {letters} (operation) WHERE operation IS NOT NULL;
CREATE UNIQUE INDEX "{table}_by_key" ON {letters} (sha256(dedup_key)) WHERE dedup_key IS NOT NULL;
CREATE SEQUENCE {fences};
"#
    )
}

fn companions(names: &Names) -> String {
    let Names {
        letters,
        aliases,
        operations,
        items,
        audit,
        processed,
        idempotency,
        marks,
        schedules,
        meta,
        table,
        ..
    } = names;
    format!(
        r#"
-- Ids of letters that were merged into another.
CREATE TABLE {aliases} (
    alias bytea PRIMARY KEY,
    letter_id bytea NOT NULL REFERENCES {letters} (letter_id) ON DELETE CASCADE,
    generation bigint NOT NULL
);
CREATE INDEX "{table}_aliases_by_letter" ON {aliases} (letter_id);

CREATE TABLE {operations} (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL UNIQUE,
    spec text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    who text NOT NULL,
    note text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    next_release timestamptz NOT NULL,
    total bigint NOT NULL,
    progress text COLLATE "C" NOT NULL
);
CREATE INDEX "{table}_operations_active" ON {operations} (seq) WHERE state IN ('canary', 'running');

CREATE TABLE {items} (
    operation bytea NOT NULL REFERENCES {operations} (id),
    idx bigint NOT NULL,
    letter_id bytea NOT NULL,
    generation bigint NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    why text,
    at timestamptz NOT NULL,
    PRIMARY KEY (operation, idx)
);
CREATE INDEX "{table}_items_queued" ON {items} (operation, left(consumer, 400), idx) WHERE outcome = 'queued';

-- What operators did.
CREATE TABLE {audit} (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    who text NOT NULL,
    note text,
    action text NOT NULL,
    subject text NOT NULL,
    affected bigint NOT NULL,
    operation bytea
);

-- One row per event that was handled, failed or dead-lettered, where the processing audit is on.
CREATE TABLE {processed} (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id text NOT NULL,
    subject text NOT NULL,
    consumer text NOT NULL,
    status text NOT NULL,
    attempt bigint NOT NULL,
    duration_ns bigint NOT NULL,
    at timestamptz NOT NULL,
    -- The same in nanoseconds since the Unix epoch, as the consumer gave it.
    at_ns bigint NOT NULL,
    error text
);

CREATE TABLE {idempotency} (
    consumer text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    fence bigint NOT NULL,
    attempts bigint NOT NULL,
    crashes bigint NOT NULL,
    phase text COLLATE "C" NOT NULL,
    -- When the phase began, and when it ends.
    since timestamptz NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX "{table}_idempotency_by_key" ON {idempotency} (sha256(key), md5(consumer));
CREATE INDEX "{table}_idempotency_until" ON {idempotency} (until);

CREATE TABLE {marks} (letter_id bytea PRIMARY KEY, begun bigint NOT NULL);
CREATE TABLE {schedules} (consumer text COLLATE "C" NOT NULL, last_run timestamptz NOT NULL);
CREATE UNIQUE INDEX "{table}_schedules_by_consumer" ON {schedules} (md5(consumer));
CREATE TABLE {meta} (name text COLLATE "C" PRIMARY KEY, value bigint NOT NULL);
INSERT INTO {meta} (name, value) VALUES ('version', 1), ('dedup', 0);
"#
    )
}

/// Returns the tables and triggers that count letters of each kind, as differences that are added up: whoever writes
/// letters appends, and waits for nobody. Triggers append, so that the counts are right whoever writes.
fn counting(names: &Names) -> String {
    let Names { letters, counts, table, .. } = names;
    let follow = names.own("count");
    let trigger = |event: &str, word: &str, tables: &str| {
        format!(
            r#"CREATE TRIGGER "{table}_count_{word}" AFTER {event} ON {letters} {tables} EXECUTE FUNCTION {follow}();
"#
        )
    };
    // A trigger of a statement sees all of its rows, so that many letters of a kind are one difference.
    let insert = trigger("INSERT", "insert", "REFERENCING NEW TABLE AS after FOR EACH STATEMENT");
    let update = trigger(
        "UPDATE",
        "update",
        "REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT",
    );
    let delete = trigger("DELETE", "delete", "REFERENCING OLD TABLE AS before FOR EACH STATEMENT");
    let truncate = trigger("TRUNCATE", "truncate", "FOR EACH STATEMENT");
    format!(
        r#"
CREATE TABLE {counts} (
    status text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    cause text COLLATE "C",
    class text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    n bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);
CREATE FUNCTION {follow}() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {counts} ({COUNTED}, n) SELECT {COUNTED}, count(*) FROM after GROUP BY {COUNTED};
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {counts} ({COUNTED}, n) SELECT {COUNTED}, -count(*) FROM before GROUP BY {COUNTED};
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO {counts} ({COUNTED}, n)
        SELECT {COUNTED}, sum(one)
        FROM (SELECT {COUNTED}, 1 AS one FROM after UNION ALL SELECT {COUNTED}, -1 FROM before) changes
        GROUP BY {COUNTED} HAVING sum(one) <> 0;
    ELSE
        TRUNCATE {counts};
    END IF;
    RETURN NULL;
END
$body$;
{insert}{update}{delete}{truncate}"#
    )
}

/// Puts the counts right after they were not kept.
pub(super) fn recount(names: &Names) -> String {
    format!("BEGIN; {}; {} COMMIT;", lock_letters(names), count_again(names))
}

/// Keeps everybody from writing letters until the transaction ends.
pub(super) fn lock_letters(names: &Names) -> String {
    format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", names.letters)
}

/// Counts all letters. Nobody may write letters meanwhile.
pub(super) fn count_again(names: &Names) -> String {
    let Names { letters, counts, .. } = names;
    format!(
        "DELETE FROM {counts}; \
         INSERT INTO {counts} ({COUNTED}, n) SELECT {COUNTED}, count(*) FROM {letters} GROUP BY {COUNTED};"
    )
}

/// Gives out no fencing token again after the sequence was lost.
pub(super) fn fences_go_on(names: &Names) -> String {
    // Tokens that were given out and stand nowhere any more may be higher than those that do, so that a million are
    // left out.
    let Names { letters, idempotency, fences, .. } = names;
    format!(
        "SELECT setval('{fences}', 1000000 + greatest((SELECT max(claim_fence) FROM {letters}), \
         (SELECT max(fence) FROM {idempotency}), 0));"
    )
}

/// The letters for human eyes: ids as hexadecimal digits, payloads as text and JSON where they are.
fn readable(names: &Names) -> String {
    let Names { letters, readable, .. } = names;
    // A payload that is no text, or no JSON, is NULL here, and not an error of everybody who looks at the view.
    let (text, json) = (names.own("text"), names.own("json"));
    let nanos = |column: &str| {
        format!("timestamptz 'epoch' + (t.{column} / 1000) * interval '1 microsecond' AS {column}")
    };
    let (died_at, published_at) = (nanos("died_at"), nanos("published_at"));
    format!(
        r#"
CREATE FUNCTION {text}(data bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    RETURN convert_from(data, 'UTF8');
EXCEPTION WHEN others THEN
    RETURN NULL;
END
$body$;
CREATE FUNCTION {json}(data bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $body$
BEGIN
    RETURN convert_from(data, 'UTF8')::jsonb;
EXCEPTION WHEN others THEN
    RETURN NULL;
END
$body$;
CREATE VIEW {readable} AS SELECT
    encode(t.letter_id, 'hex') AS letter_id,
    t.generation, t.event_id, t.subject, t.event_type, t.consumer, t.service, t.status, t.resolution,
    t.reason, t.cause, t.class, t.fingerprint, t.error, t.attempts, t.deliveries, t.crashes,
    t.escalations, t.retry_count, t.replays, t.seen, t.confirmed,
    t.retry_after, t.created_at, t.updated_at, {died_at}, t.last_retry_at, {published_at}, t.claim_until,
    encode(t.operation, 'hex') AS operation, t.claim_owner,
    t.cluster, t.transport, t.stream, t.partition, t.position, t.attributes, t.headers, t.history,
    octet_length(t.data) AS data_size,
    {text}(t.data) AS data_text,
    {json}(t.data) AS data_json
FROM {letters} t;
"#
    )
}
