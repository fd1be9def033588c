//! Loading of the rows that a verb needs. Letters are locked in the order of their ids, and operations after them.

use std::collections::{BTreeMap, BTreeSet};

use dlq_core::store::OperationState;
use dlq_core::{LetterId, OperationId, Timestamp};
use dlq_letters::{Alias, Depth, DocumentKey, DocumentKind, DocumentRange, Needs, Row, Rows};

use super::batch::Batch;
use super::codec::{Fields, read_row};
use super::operations::{active, read_operation, select};
use super::query::Query;
use super::step::Step;
use crate::columns;
use crate::error::Result;
use crate::values::{self, Put as _, Take as _};

impl Step<'_> {
    /// Loads and locks what is needed.
    pub(super) async fn load(&mut self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        // All who write take their locks in this order: the switch, schedules, letters, documents, operations. Rounds
        // that follow may ask for more, and where two calls then wait in a circle the database ends one, which is run
        // again.
        if needs.dedup {
            let is_dedup = self.hold_dedup().await?;
            rows.supply_dedup(is_dedup);
        }
        for consumer in &needs.schedules {
            let last = self.hold_schedule(consumer).await?;
            rows.supply_schedule(consumer.clone(), last);
        }
        self.load_glimpses(&needs.glimpses, rows).await?;
        for kind in &needs.listed {
            let documents = self.documents(*kind).await?;
            rows.supply_documents(*kind, documents);
        }
        for range in &needs.ranges {
            let names = self.document_names(range).await?;
            rows.supply_document_names(range.clone(), names);
        }
        let mut more = Needs::default();
        self.load_letters(needs, rows, &mut more).await?;
        self.load_originals(needs, rows).await?;
        self.load_documents(&needs.documents, rows).await?;
        more.operations.clone_from(&needs.operations);
        more.states.extend(&needs.states);
        more.active = needs.active;
        more.operation_number = needs.operation_number;
        self.load_operations(&more, rows).await?;
        // Only those change an item who hold its letter or its operation.
        more.items.extend(&needs.items);
        self.load_items(&more.items, rows).await?;
        if needs.fences > 0 {
            self.reserve_fences(needs.fences, rows).await?;
        }
        Ok(())
    }

    /// Reads whether letters of the same original message are kept as one. Who switches that holds off all who write: this
    /// one waits here, and not after it has looked.
    async fn hold_dedup(&mut self) -> Result<bool> {
        let lock = format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", self.names().letters);
        Query::new(lock).run(self.conn()).await?;
        self.dedup_flag().await
    }

    /// Reads the same for who writes no letters: it may be switched at any moment.
    pub(super) async fn dedup_flag(&mut self) -> Result<bool> {
        let sql = format!("SELECT value <> 0 FROM {} WHERE name = 'dedup'", self.names().meta);
        let found = Query::new(sql).first(self.conn(), |row| Fields::of(row).flag()).await?;
        Ok(found == Some(true))
    }

    /// Reads when a schedule ran last. Whoever else looks at this moment waits here, and then finds that it has run: of the
    /// first run too, for which there is a row that says `-infinity`, taken back unless the schedule runs.
    async fn hold_schedule(&mut self, consumer: &str) -> Result<Option<Timestamp>> {
        let schedules = &self.names().schedules;
        let first = Query::new(format!("INSERT INTO {schedules} (consumer, last_run) VALUES ("));
        let first =
            first.bind(consumer).push(", '-infinity') ON CONFLICT (md5(consumer)) DO NOTHING");
        first.run(self.conn()).await?;
        let last = format!(
            "SELECT CASE WHEN isfinite(last_run) THEN last_run END FROM {schedules} WHERE md5(consumer) = md5("
        );
        let last = Query::new(last).bind(consumer).push(") FOR UPDATE");
        let last = last.first(self.conn(), |record| Fields::of(record).time_or_none());
        Ok(last.await?.flatten())
    }

    /// Reads and locks documents, in the order of their keys. One that is not there cannot be locked: of two who make it, one
    /// decides anew.
    async fn load_documents(
        &mut self,
        keys: &BTreeSet<DocumentKey>,
        rows: &mut Rows,
    ) -> Result<()> {
        self.read_documents(keys, " ORDER BY name FOR UPDATE", |key, text| {
            rows.supply_document(key, text);
        })
        .await
    }

    /// Reads documents without locks, for which the right to read is enough.
    async fn load_glimpses(&mut self, keys: &BTreeSet<DocumentKey>, rows: &mut Rows) -> Result<()> {
        self.read_documents(keys, "", |key, text| rows.supply_glimpse(key, text)).await
    }

    async fn read_documents(
        &mut self,
        keys: &BTreeSet<DocumentKey>,
        locked: &str,
        mut supply: impl FnMut(DocumentKey, Option<String>) + Send,
    ) -> Result<()> {
        for kind in DocumentKind::ALL {
            let wanted = keys.iter().filter(|key| key.kind == kind);
            let names: Vec<&str> = wanted.clone().map(|key| key.name.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            let sql = format!("SELECT name, value FROM {} WHERE kind = ", self.names().documents);
            let query = Query::new(sql).bind(kind.as_str()).push(" AND name = ANY(");
            let read = |record: &_| {
                let mut fields = Fields::of(record);
                Ok((fields.text()?, fields.text()?))
            };
            let query = query.bind(names).push(")").push(locked);
            let found = query.all(self.conn(), read).await?;
            let mut found: BTreeMap<String, String> = found.into_iter().collect();
            for key in wanted {
                supply(key.clone(), found.remove(&key.name));
            }
        }
        Ok(())
    }

    async fn document_names(&mut self, range: &DocumentRange) -> Result<Vec<String>> {
        let sql = format!("SELECT name FROM {} WHERE kind = ", self.names().documents);
        let mut query = Query::new(sql).bind(range.kind.as_str());
        if let Some(after) = &range.after {
            query.add(columns::name_after(range.order));
            query.add_bind(after.as_str());
        }
        query.add(columns::by_name(range.order));
        query.bind(range.limit).all(self.conn(), |record| Fields::of(record).text()).await
    }

    async fn documents(&mut self, kind: DocumentKind) -> Result<Vec<(DocumentKey, String)>> {
        let sql = format!("SELECT name, value FROM {} WHERE kind = ", self.names().documents);
        let query = Query::new(sql).bind(kind.as_str());
        let read = |record: &_| {
            let mut fields = Fields::of(record);
            Ok((DocumentKey { kind, name: fields.text()? }, fields.text()?))
        };
        query.all(self.conn(), read).await
    }

    /// Loads letters, and adds to `more` what nearly every verb asks for next: their items and, of those that nobody runs, the
    /// states of their operations.
    async fn load_letters(
        &mut self,
        needs: &Needs,
        rows: &mut Rows,
        more: &mut Needs,
    ) -> Result<()> {
        let now = self.now();
        let mut supply = |read: Vec<Row>, depth, rows: &mut Rows| {
            for row in read {
                if let Some((operation, index)) = row.item {
                    more.items.insert((operation, index));
                    if row.available_at().is_some() && row.is_idle_replay(now) {
                        more.states.insert(operation);
                    }
                }
                rows.supply_letter(row.letter.id, Some(row), depth);
            }
        };
        let mut wanted = needs.letters.clone();
        for (select, depth) in &needs.selects {
            let found = self.select(select, *depth).await?;
            match found.rows {
                Some(read) => supply(read, *depth, rows),
                None => {
                    for one in &found.selected {
                        let known = wanted.entry(one.letter).or_insert(*depth);
                        *known = (*depth).max(*known);
                    }
                }
            }
            rows.supply_select(select.clone(), *depth, found.selected);
        }
        let deep: Vec<_> = of_depth(&wanted, Depth::Whole);
        // In one order, however deep: those that are read whole are locked with the others first.
        if deep.len() < wanted.len() {
            let all = wanted.keys().copied().collect();
            let read = self.lock_letters(all, Depth::Head).await?;
            // Each letter is supplied as absent first. What was read takes the place of that.
            for id in of_depth(&wanted, Depth::Head) {
                rows.supply_letter(id, None, Depth::Head);
            }
            supply(read, Depth::Head, rows);
        }
        if !deep.is_empty() {
            let read = self.lock_letters(deep.clone(), Depth::Whole).await?;
            for id in deep {
                rows.supply_letter(id, None, Depth::Whole);
            }
            supply(read, Depth::Whole, rows);
        }
        Ok(())
    }

    async fn lock_letters(&mut self, ids: Vec<LetterId>, depth: Depth) -> Result<Vec<Row>> {
        let is_whole = depth == Depth::Whole;
        let names = self.names();
        let select = if is_whole { &names.select_whole } else { &names.select_head };
        let query = Query::new(select).push(" WHERE t.letter_id = ANY(").bind(ids);
        let query = query.push(") ORDER BY t.letter_id FOR UPDATE");
        query.all(self.conn(), |record| read_row(record, is_whole)).await
    }

    async fn load_originals(&mut self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        if !needs.owners.is_empty() {
            let mut found = self.owners(&needs.owners).await?;
            for key in &needs.owners {
                rows.supply_owner(key.clone(), found.remove(key));
            }
        }
        if !needs.aliases.is_empty() {
            let ids: Vec<_> = needs.aliases.iter().copied().collect();
            let found = self.aliases("alias", ids).await?;
            let mut found: BTreeMap<_, _> = found.into_iter().collect();
            for id in &needs.aliases {
                rows.supply_alias(*id, found.remove(id));
            }
        }
        if !needs.aliases_of.is_empty() {
            let ids: Vec<_> = needs.aliases_of.iter().copied().collect();
            let mut of: BTreeMap<_, Vec<_>> = ids.iter().map(|id| (*id, Vec::new())).collect();
            for (id, alias) in self.aliases("letter_id", ids).await? {
                of.entry(alias.row).or_default().push((id, alias));
            }
            for (id, aliases) in of {
                rows.supply_aliases_of(id, aliases);
            }
        }
        Ok(())
    }

    async fn aliases(&mut self, by: &str, ids: Vec<LetterId>) -> Result<Vec<(LetterId, Alias)>> {
        let sql = format!(
            "SELECT alias, letter_id, generation FROM {} WHERE {by} = ANY(",
            self.names().aliases
        );
        let query = Query::new(sql).bind(ids).push(")");
        query
            .all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                let id = fields.letter()?;
                Ok((id, Alias { row: fields.letter()?, generation: fields.count()? }))
            })
            .await
    }

    async fn load_operations(&mut self, needs: &Needs, rows: &mut Rows) -> Result<()> {
        let names = self.names();
        if !needs.operations.is_empty() {
            let query = select(names).push(" WHERE id = ANY(").bind(bytes(&needs.operations));
            let query = query.push(") ORDER BY seq FOR UPDATE");
            for id in &needs.operations {
                rows.supply_operation(*id, None);
            }
            for operation in query.all(self.conn(), read_operation).await? {
                rows.supply_operation(operation.id, Some(operation));
            }
        }
        if needs.active {
            // Only those are locked that may release at this moment: others finish letters of the rest.
            let now = self.now();
            let may_release = active(self.conn(), names).await?.into_iter().filter(|operation| {
                let advance = operation.advance(now, u64::MAX);
                advance.release > 0 || advance.state != operation.state
            });
            let ids: BTreeSet<_> = may_release.map(|operation| operation.id).collect();
            let operations = if ids.is_empty() {
                Vec::new()
            } else {
                // They are read once more under the lock: others may have released letters since.
                let query = select(names).push(" WHERE id = ANY(").bind(bytes(&ids));
                let query = query.push(") ORDER BY seq FOR UPDATE");
                query.all(self.conn(), read_operation).await?
            };
            rows.supply_active(operations);
        }
        if !needs.states.is_empty() {
            let query =
                Query::new(format!("SELECT id, state FROM {} WHERE id = ANY(", names.operations));
            let query = query.bind(bytes(&needs.states)).push(")");
            for id in &needs.states {
                rows.supply_state(*id, None);
            }
            let found = query.all(self.conn(), |record| {
                let mut fields = Fields::of(record);
                let id = OperationId::from_bytes(fields.id_or_none()?.unwrap_or_default());
                Ok((id, fields.word::<OperationState>("state of an operation")?))
            });
            for (id, state) in found.await? {
                rows.supply_state(id, Some(state));
            }
        }
        if needs.operation_number {
            // Two that start at the same moment may read the same number. Where their ids are the same, too, the unique
            // index refuses one of them, which is run again.
            let last = format!("SELECT coalesce(max(seq), 0) FROM {}", names.operations);
            let last = Query::new(last).first(self.conn(), |record| Fields::of(record).unsigned());
            rows.supply_operation_number(last.await?.unwrap_or_default());
        }
        Ok(())
    }

    async fn load_items(
        &mut self,
        places: &BTreeSet<(OperationId, u64)>,
        rows: &mut Rows,
    ) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (operation, index) in places {
            let row = batch.row();
            row.bytes(Some(operation.as_bytes()))?;
            row.int(Some(values::signed(*index)))?;
        }
        let sql =
            format!("SELECT i.operation, i.idx, i.outcome FROM {} i JOIN ", self.names().items);
        let query =
            Query::new(sql).batch(batch)?.push(" AS u (operation, idx) USING (operation, idx)");
        let found = query.all(self.conn(), |record| {
            let mut fields = Fields::of(record);
            let id = OperationId::from_bytes(fields.id_or_none()?.unwrap_or_default());
            Ok((id, fields.unsigned()?, fields.word("outcome")?))
        });
        for (operation, index) in places {
            // Those that are not found are supplied as missing, so that they are not asked for again.
            rows.supply_item(*operation, *index, None);
        }
        for (operation, index, outcome) in found.await? {
            rows.supply_item(operation, index, Some(outcome));
        }
        Ok(())
    }

    async fn reserve_fences(&mut self, count: u64, rows: &mut Rows) -> Result<()> {
        // Tokens of a step that is taken back are left out: they have to grow, and gaps do no harm.
        let next = format!("SELECT nextval('{}') FROM generate_series(1, ", self.names().fences);
        let next = Query::new(next).bind(values::signed(count)).push(")");
        for fence in next.all(self.conn(), |record| Fields::of(record).unsigned()).await? {
            rows.supply_fences(fence..fence + 1);
        }
        Ok(())
    }
}

fn of_depth(wanted: &BTreeMap<LetterId, Depth>, depth: Depth) -> Vec<LetterId> {
    wanted.iter().filter(|(_, it)| **it == depth).map(|(id, _)| *id).collect()
}

fn bytes<'i>(ids: impl IntoIterator<Item = &'i OperationId>) -> Vec<Vec<u8>> {
    ids.into_iter().map(|id| id.as_bytes().to_vec()).collect()
}
