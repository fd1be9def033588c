//! Examples at the end of the help of each verb.

pub(super) const LIST: &str = "\
Examples:
  dlq list --consumer billing --since 1h  of the last hour
  dlq list --sort -attempts --columns id,attempts,error
  dlq list --status quarantined -o jsonl  a line of JSON for each";

pub(super) const COUNT: &str = "\
Examples:
  dlq count --status pending
  dlq count --cause timeout --since 24h";

pub(super) const SHOW: &str = "\
Examples:
  dlq show e2571fd5398e            by the first digits of its id
  dlq show e2571fd5398e --payload  the payload alone, byte for byte
  dlq show e2571fd5398e -o json";

pub(super) const GROUPS: &str = "\
Examples:
  dlq groups  what waits for somebody
  dlq groups --since 1h --sort -count
  dlq groups --state snoozed,resolved --columns group,state,owner,note";

pub(super) const GROUP: &str = "\
Examples:
  dlq group show v1:f6359dc7bb8a647d
  dlq group snooze v1:f6359dc7bb8a647d --for 2h --reason \"it is down\"
  dlq group assign v1:f6359dc7bb8a647d payments-team";

pub(super) const CONSUMERS: &str = "\
Examples:
  dlq consumers
  dlq consumers --gone  those that fell silent";

pub(super) const STATS: &str = "\
Examples:
  dlq stats --since 24h
  dlq stats --consumer billing -o json";

pub(super) const PEEK: &str = "\
Examples:
  dlq peek
  dlq peek --subject \"orders.>\" --limit 3";

pub(super) const REPLAY: &str = "\
Examples:
  dlq replay --fingerprint v1:f6359dc7bb8a647d --dry-run
  dlq replay --consumer billing --canary 5 --rate 50/s --wait
  dlq replay --id e2571fd5398e --to origin  for all who listen there";

pub(super) const OP: &str = "\
Examples:
  dlq op list
  dlq op watch 0197a3  by the first digits of its id
  dlq op pause 0197a3 --note \"the database is slow\"";

pub(super) const AUDIT: &str = "\
Examples:
  dlq audit --action delete --since 24h   who deleted letters
  dlq audit --letter e2571fd5398e --diff  what was done to one letter";

pub(super) const MARK: &str = "\
Examples:
  dlq mark quarantined --fingerprint v1:f6359dc7bb8a647d --note \"incident 17\"
  dlq mark resolved --consumer billing --until 30d --yes";

pub(super) const DELETE: &str = "\
Examples:
  dlq delete --id e2571fd5398e --note \"asked for by the customer\"
  dlq delete --consumer legacy --dry-run";

pub(super) const RESTORE: &str = "\
Examples:
  dlq restore --list --since 1d
  dlq restore e2571fd5398e --note \"deleted by mistake\"
  dlq restore --by ana --since 1h";

pub(super) const EDIT: &str = "\
Examples:
  dlq edit e2571fd5398e --editor  in $VISUAL or $EDITOR
  dlq edit e2571fd5398e --header region=eu --remove-header trace
  dlq edit e2571fd5398e --undo";

pub(super) const CLEANUP: &str = "\
Examples:
  dlq cleanup --older-than 30d --dry-run
  dlq cleanup --older-than 30d --yes  in a nightly job";

pub(super) const EXPORT: &str = "\
Examples:
  dlq export --unmasked --to letters.jsonl           a backup
  dlq export --unmasked --to letters.jsonl --resume  after it was interrupted
  dlq export --consumer billing                      to standard output";

pub(super) const IMPORT: &str = "\
Examples:
  dlq import letters.jsonl --from sqlite://copy.db --create
  dlq import -  from standard input";

#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
pub(super) const INGEST: &str = "\
Examples:
  dlq ingest --from nats://nats.internal/DLQ --into sqlite://dlq.db --once
  dlq ingest --from kafka://kafka/orders.dlq --into postgres://db/orders";

#[cfg(feature = "nats")]
pub(super) const ROUTE: &str = "\
Examples:
  dlq route --from nats://nats.internal/DLQ --stream ORDERS";

pub(super) const CHECK: &str = "\
Examples:
  dlq check
  dlq check --older-than 1d --deep";

pub(super) const MIGRATE: &str = "\
Examples:
  dlq migrate  what is to be done
  dlq migrate --apply";

pub(super) const CONTEXT: &str = "\
Examples:
  dlq context list
  dlq context use prod";

pub(super) const SERVE: &str = "\
Examples:
  dlq serve --console  at http://127.0.0.1:9400
  dlq serve --metrics 0.0.0.0:9400 --max-backlog 1000";
