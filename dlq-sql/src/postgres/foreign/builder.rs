use std::str::FromStr as _;
use std::time::Duration;

use dlq_core::{ErrorClass, StoreError, StoreErrorKind};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};

use super::super::codec::Fields;
use super::super::query::Query;
use super::super::silence::AnswerTimeout;
use super::catalogue::{self, FoundTable, Listed};
use super::field::KnownLayout;
use super::letter::{Column, Kind, Reader};
use super::{Field, ForeignColumn, ForeignTable, Meaning, Paging, select};
use crate::error::{During as _, Fault, Result};
use crate::values::Take as _;

/// Time limit for connecting to the database.
const CONNECTING: Duration = Duration::from_secs(30);

/// Builder of a [`ForeignTable`].
///
/// ```no_run
/// use dlq_sql::postgres::foreign::{Field, ForeignTable};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table = ForeignTable::builder("postgres://ana@localhost/orders", "failed.messages")
///     .map(Field::Payload, "body")
///     .map(Field::Subject, "topic")
///     .time_zone("Europe/Berlin")
///     .consumer("payments.charge");
/// let table = table.open().await?;
/// # drop(table);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is opened"]
pub struct ForeignBuilder {
    /// May hold a password.
    url: String,
    table: String,
    fields: Vec<(Field, String)>,
    skipped: Vec<String>,
    zone: String,
    consumer: Option<String>,
    service: Option<String>,
    class: ErrorClass,
    cluster: Option<String>,
    answer_timeout: Duration,
}

impl std::fmt::Debug for ForeignBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForeignBuilder").field("table", &self.table).finish_non_exhaustive()
    }
}

impl ForeignBuilder {
    pub(super) fn new(url: String, table: String) -> Self {
        Self {
            url,
            table,
            fields: Vec::new(),
            skipped: Vec::new(),
            zone: "UTC".to_owned(),
            answer_timeout: Duration::from_secs(3600),
            consumer: None,
            service: None,
            class: ErrorClass::Transient,
            cluster: None,
        }
    }

    /// Says which column holds `field`; prevails over what is known of the table. A table whose columns are not known
    /// needs at least `payload`, and `subject` or `event`.
    pub fn map(mut self, field: Field, column: impl Into<String>) -> Self {
        // A field has one column: the later call counts.
        self.fields.retain(|(known, _)| *known != field);
        self.fields.push((field, column.into()));
        self
    }

    /// Leaves a column out: what is in it is not in the letters. Defaults to leaving out nothing.
    pub fn skip(mut self, column: impl Into<String>) -> Self {
        self.skipped.push(column.into());
        self
    }

    /// Sets the zone of times that are stored without one, by a name that the database knows. Defaults to `UTC`.
    pub fn time_zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// Sets whose deaths the letters are, where no column says so. Defaults to the name of the table.
    pub fn consumer(mut self, consumer: impl Into<String>) -> Self {
        self.consumer = Some(consumer.into());
        self
    }

    /// Sets which program wrote the letters, where no column says so. Defaults to none.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    /// Sets whether another attempt may succeed, where no column says so. Defaults to transient.
    pub fn class(mut self, class: ErrorClass) -> Self {
        self.class = class;
        self
    }

    /// Sets the alias of the database, a part of the letters' identity. Defaults to its name and the system identifier of
    /// its server, where the user may read that.
    pub fn cluster(mut self, cluster: impl Into<String>) -> Self {
        self.cluster = Some(cluster.into());
        self
    }

    /// Sets how long the database may be silent before a call gives it up and fails as `Unavailable`; zero means for ever.
    /// It sorts the table before it gives out the first row. Defaults to an hour; to connect it has 30 seconds at most.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Connects, looks at the table and begins to read: what others change from now on is not seen.
    ///
    /// # Errors
    ///
    /// - `Unavailable`: the database does not answer.
    /// - `NotFound`: there is no such database or table.
    /// - `InvalidConfig`: the URL, the time zone or a name will not do; the columns are not known and not mapped; a right is
    ///   missing; or it is a table of a store, which is opened as one.
    pub async fn open(self) -> std::result::Result<ForeignTable, StoreError> {
        let open = async {
            let options = PgConnectOptions::from_str(&self.url)?.disable_statement_logging();
            let answer_timeout =
                AnswerTimeout(Some(self.answer_timeout).filter(|limit| !limit.is_zero()));
            // A table may take an hour to be sorted, which is too long for learning that no server is there.
            let connecting = AnswerTimeout(Some(
                answer_timeout.0.map_or(CONNECTING, |limit| limit.min(CONNECTING)),
            ));
            let conn = connecting.on(async { Ok(options.connect().await?) }).await?;
            answer_timeout.on(self.start(conn, answer_timeout)).await
        };
        open.await.during("open the table")
    }

    async fn start(
        self,
        mut conn: PgConnection,
        answer_timeout: AnswerTimeout,
    ) -> Result<ForeignTable> {
        // It is asked outside of the transaction, which would be lost with a right that is refused.
        let cluster = match &self.cluster {
            Some(cluster) => cluster.clone(),
            None => cluster(&mut conn).await?,
        };
        sqlx::raw_sql(select::BEGIN).execute(&mut conn).await.map_err(refused)?;
        self.check_zone(&mut conn).await?;
        // By the clock of the database: that of this machine may differ.
        let opened_at = Query::new("SELECT transaction_timestamp()");
        let opened_at = opened_at.first(&mut conn, |row| Fields::of(row).time()).await?;
        let found = catalogue::find(&mut conn, &self.table).await?;
        let (columns, layout) = self.columns(&found)?;
        let from = format!("{}.{}", select::quoted(&found.schema), select::quoted(&found.table));
        let declare = select::declare(&columns, &found.key, &from, &self.zone);
        sqlx::raw_sql(AssertSqlSafe(declare)).execute(&mut conn).await.map_err(refused)?;
        let reader = Reader {
            cluster,
            stream: format!("{}.{}", found.schema, found.table),
            key: found.key,
            columns,
            consumer: self.consumer.unwrap_or(found.table),
            service: self.service,
            class: self.class,
            opened_at: opened_at.unwrap_or_default(),
        };
        let paging = Paging::new();
        Ok(ForeignTable {
            conn,
            answer_timeout,
            reader,
            from,
            shape: layout,
            paging,
            is_reading: false,
        })
    }

    async fn check_zone(&self, conn: &mut PgConnection) -> Result<()> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "_+-:/".contains(char);
        let refusal = || {
            let zone: String = self.zone.chars().take(80).collect();
            Fault::new(
                StoreErrorKind::InvalidConfig,
                format!(
                    "`{zone}` is not a time zone that the database knows; write e.g. Europe/Berlin"
                ),
            )
        };
        // The zone becomes part of the text of a statement, so its characters are looked at before the database is
        // asked.
        if self.zone.is_empty() || !self.zone.chars().all(is_plain) {
            return Err(refusal());
        }
        let query =
            Query::new("SELECT (now() AT TIME ZONE ").bind(&*self.zone).push(") IS NOT NULL");
        let asked = query.first(conn, |row| Fields::of(row).flag()).await;
        asked.map(drop).map_err(|fault| match fault.kind() {
            // The refusal of a zone has no kind of its own.
            StoreErrorKind::Unexpected => refusal(),
            _ => fault,
        })
    }

    /// Returns the meaning of each column, and the name of the layout by which it is known.
    fn columns(&self, found: &FoundTable) -> Result<(Vec<Column>, Option<&'static str>)> {
        let invalid = |detail: String| Fault::new(StoreErrorKind::InvalidConfig, detail);
        let names: Vec<&str> = found.columns.iter().map(|column| &*column.name).collect();
        let has = |name: &str| names.contains(&name);
        if has("letter_id") && has("generation") {
            return Err(invalid(format!(
                "`{}` holds the letters of a store; open it with `PostgresStore::builder`",
                self.table
            )));
        }
        for name in self.fields.iter().map(|(_, name)| name).chain(&self.skipped) {
            if !has(name) {
                return Err(invalid(format!(
                    "`{}` has no column `{name}`; it has {}",
                    self.table,
                    names.join(", ")
                )));
            }
        }
        let layout = KnownLayout::of(has);
        let mut fields = self.fields.clone();
        for (name, field) in layout.iter().flat_map(|layout| layout.fields()) {
            // What was mapped prevails: neither its field nor its column is given away a second time.
            if has(name) && !fields.iter().any(|(known, taken)| *known == field || taken == name) {
                fields.push((field, name.to_owned()));
            }
        }
        let knows = |wanted: &[Field]| fields.iter().any(|(field, _)| wanted.contains(field));
        if !knows(&[Field::Payload]) || !knows(&[Field::Subject, Field::Event]) {
            return Err(invalid(format!(
                "the columns of `{}` are not known ({}); say which of them are payload and subject or event \
                 with `ForeignBuilder::map`; known are tables with {}",
                self.table,
                names.join(", "),
                KnownLayout::known()
            )));
        }
        let columns = found.columns.iter().map(|listed| self.column(listed, &fields));
        Ok((columns.collect::<Result<_>>()?, layout.map(|layout| layout.name)))
    }

    fn column(&self, listed: &Listed, fields: &[(Field, String)]) -> Result<Column> {
        let fields: Vec<_> = fields
            .iter()
            .filter(|(_, name)| *name == listed.name)
            .map(|(field, _)| *field)
            .collect();
        let meaning = match &fields[..] {
            // This comes first, so that a column that a known layout maps can be left out.
            _ if self.skipped.contains(&listed.name) => Meaning::Skipped,
            [] => Meaning::Attribute,
            [field] => Meaning::Field(*field),
            [first, second, ..] => {
                return Err(Fault::new(
                    StoreErrorKind::InvalidConfig,
                    format!("column `{}` cannot be both {first} and {second}", listed.name),
                ));
            }
        };
        let is_time = matches!(meaning, Meaning::Field(field) if field.is_time());
        let kind = match &*listed.base {
            "bytea" => Kind::Bytes,
            "timestamp" | "date" if is_time => Kind::LocalTime,
            _ => Kind::Text,
        };
        if is_time && kind != Kind::LocalTime && listed.base != "timestamptz" {
            return Err(Fault::new(
                StoreErrorKind::InvalidConfig,
                format!(
                    "column `{}` is {}, and a time is expected of it; map another one, or read a view that converts it",
                    listed.name, listed.type_name
                ),
            ));
        }
        let (name, type_name) = (listed.name.clone(), listed.type_name.clone());
        Ok(Column { shown: ForeignColumn { name, type_name, meaning }, kind })
    }
}

/// The database's name, and the system identifier of its server where the user may read it: databases of the same name
/// on other servers are others.
async fn cluster(conn: &mut PgConnection) -> Result<String> {
    let name = Query::new("SELECT current_database()::text");
    let name = name.first(conn, |row| Fields::of(row).text()).await?.unwrap_or_default();
    let server = Query::new("SELECT system_identifier::text FROM pg_catalog.pg_control_system()");
    match server.first(conn, |row| Fields::of(row).text()).await {
        Ok(Some(server)) => Ok(format!("{name}@{server}")),
        Ok(None) => Ok(name),
        Err(fault) if fault.kind() == StoreErrorKind::Unavailable => Err(fault),
        // A right that some hosts do not grant.
        Err(_) => Ok(name),
    }
}

/// Returns the meaning of a database error for readers.
pub(super) fn refused(error: sqlx::Error) -> Fault {
    let database = error.as_database_error();
    let Some(refusal) = database.filter(|error| error.code().as_deref() == Some("42501")) else {
        return error.into();
    };
    let detail = format!(
        "a right is missing: {}; grant USAGE on the schema and SELECT on the table, and where it has row-level \
         security, read as its owner or with BYPASSRLS",
        refusal.message()
    );
    Fault::new(StoreErrorKind::InvalidConfig, detail).with_source(error)
}
