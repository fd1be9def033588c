//! Loading of rows for a verb in few round trips: calls that do not depend on each other go out together.

use dlq_core::store::OperationState;
use dlq_core::{OperationId, Timestamp};
use dlq_letters::{Depth, Needs, Select};
use futures_util::future::{try_join, try_join_all, try_join3};
use redis::Value;

use super::Inner;
use super::fault::Result;
use super::names::{self, Bytes};
use super::ops::Stored;
use super::scripts;
use super::seen::{Loaded, letter_id};
use super::select::Picked;

/// Version of the layout that this program writes.
pub(super) const SCHEMA: u64 = 1;

impl Inner {
    /// Loads `needs`. `now` is known from the second look on. `lost` is how often the call has lost against others.
    pub(super) async fn load(
        &self,
        needs: &Needs,
        now: Option<Timestamp>,
        lost: u32,
    ) -> Result<Loaded> {
        let link = &self.link;
        let mut now = now.or_else(|| self.clock.as_ref().map(|clock| clock.now()));
        let needs_time = |(select, _): &(Select, Depth)| {
            matches!(select, Select::Lapsed { .. } | Select::Open { .. })
        };
        if now.is_none() && needs.selects.iter().any(needs_time) {
            // These cost a round trip more: all others take the time that comes with their rows, or the script's own.
            now = Some(link.time().await?);
        }
        let claims = needs.selects.iter().any(|(select, _)| matches!(select, Select::Due { .. }));
        let at_depth = |depth| {
            let ids = needs.letters.iter().filter(move |(_, of)| **of == depth);
            let ids: Vec<_> = ids.map(|(id, _)| *id).collect();
            async move {
                let found = link.letters(ids, depth).await?;
                Ok::<_, super::fault::Fault>(found.into_iter().map(move |it| (it, depth)))
            }
        };
        let letters = try_join(at_depth(Depth::Head), at_depth(Depth::Whole));
        let selects = needs.selects.iter().map(|(select, depth)| async move {
            Ok::<_, super::fault::Fault>((
                select,
                *depth,
                Box::pin(self.select(select, *depth, now, lost)).await?,
            ))
        });
        let first = try_join(link.meta(), letters);
        let second = try_join3(
            try_join_all(selects),
            // A claim asks for operations only when letters leave room, which is not known yet; a second round trip
            // would cost more.
            Box::pin(self.operations(needs, claims || needs.active)),
            Box::pin(self.originals(needs)),
        );
        let ((meta, (heads, wholes)), (selects, operations, originals)) =
            try_join(first, second).await?;
        // Every call looks, so that nothing is decided over keys that somebody has deleted or a newer program has
        // migrated.
        super::open::judge(meta.schema)?;
        let mut loaded = originals;
        loaded.now = now.unwrap_or(meta.time);
        loaded.letters.extend(heads.chain(wholes));
        loaded.operations = operations.0;
        loaded.items = operations.1;
        loaded.states = operations.2;
        loaded.fences = needs.fences;
        let mut is_full = false;
        for (select, depth, Picked { selected, letters, items }) in selects {
            if let Select::Due { limit, .. } = select {
                is_full |= selected.len() as u64 >= *limit;
            }
            if matches!(select, Select::Due { .. } | Select::Queued { .. } | Select::Lapsed { .. })
            {
                // A claim needs a number for each of these next. Read ahead, they spare it a round trip.
                loaded.fences += selected.len() as u64;
            }
            loaded.letters.extend(letters.into_iter().map(|it| (it, depth)));
            loaded.items.extend(items);
            loaded.selects.push((select.clone(), depth, selected));
        }
        // A claim that is full with letters that are due releases none of an operation.
        if needs.active || (claims && !is_full) {
            loaded.active = operations.3;
        }
        if needs.dedup {
            loaded.dedup = Some(meta.dedup);
        }
        // Greater than all before, also where a fail-over has forgotten some.
        let micros = u64::try_from(meta.time.as_nanos() / 1_000).unwrap_or(0);
        loaded.fence = micros.max(meta.fence + 1);
        Ok(loaded)
    }

    async fn operations(
        &self,
        needs: &Needs,
        active: bool,
    ) -> Result<(
        Vec<(OperationId, Option<Stored>)>,
        Vec<((OperationId, u64), Option<Bytes>)>,
        Vec<(OperationId, Option<Bytes>)>,
        Option<Vec<Stored>>,
    )> {
        let link = &self.link;
        let by_id = async {
            let ids: Vec<_> = needs.operations.iter().copied().collect();
            if ids.is_empty() { Ok(Vec::new()) } else { link.operations(&ids).await }
        };
        let items = try_join_all(needs.items.iter().map(|(operation, index)| async move {
            let key = link.names.items(*operation);
            let record = link.fields(&key, &[index.to_string()]).await?.pop().flatten();
            Ok::<_, super::fault::Fault>(((*operation, *index), record))
        }));
        let states = try_join_all(needs.states.iter().map(|id| async move {
            let state = link.fields(&link.names.operation(*id), &["s"]).await?.pop().flatten();
            Ok::<_, super::fault::Fault>((*id, state))
        }));
        let active = async {
            if !active {
                return Ok(None);
            }
            let live = link.operations(&[]).await?;
            // Operations that an operator holds are live as well, and release nothing.
            let may_release = |stored: &Stored| {
                let state = stored.operation.state;
                matches!(state, OperationState::Canary | OperationState::Running)
            };
            Ok(Some(live.into_iter().filter_map(|(_, it)| it).filter(may_release).collect()))
        };
        let ((by_id, items), (states, active)) =
            try_join(try_join(by_id, items), try_join(states, active)).await?;
        Ok((by_id, items, states, active))
    }

    /// Loads owners of keys, letters that were merged into others, and whatever else is found by key.
    async fn originals(&self, needs: &Needs) -> Result<Loaded> {
        let link = &self.link;
        let names = &link.names;
        let owners = async {
            let fields: Vec<_> = needs.owners.iter().map(names::owner).collect();
            link.fields(&names.owners, &fields).await
        };
        let aliases = async {
            let fields: Vec<_> = needs.aliases.iter().map(|id| id.as_bytes()).collect();
            link.fields(&names.aliases, &fields).await
        };
        let aliases_of = try_join_all(needs.aliases_of.iter().map(|id| async move {
            let part = names::aliases(*id);
            let bounds = (names::from(&part), names::to(&part));
            let members = link.members(bounds, false, usize::MAX >> 1).await?;
            // The name of the part takes 17 bytes: its kind, and the letter that is pointed at.
            let ids: Vec<_> = members.iter().filter_map(|it| letter_id(&it[17..])).collect();
            let fields: Vec<_> = ids.iter().map(|id| id.as_bytes()).collect();
            let texts = link.fields(&names.aliases, &fields).await?;
            Ok::<_, super::fault::Fault>((*id, ids.into_iter().zip(texts).collect()))
        }));
        let schedules = async {
            let fields: Vec<_> = needs.schedules.iter().collect();
            link.fields(&names.schedules, &fields).await
        };
        let documents = async {
            // Both go in one call; their order tells below which is which.
            let keys: Vec<_> = needs.documents.iter().chain(&needs.glimpses).collect();
            link.some_documents(&keys).await
        };
        let ranges = try_join_all(needs.ranges.iter().map(|range| async move {
            Ok::<_, super::fault::Fault>((range.clone(), link.document_names(range).await?))
        }));
        let listed = try_join_all(needs.listed.iter().map(|kind| link.documents(*kind)));
        let number = async {
            if !needs.operation_number {
                return Ok(None);
            }
            let mut cmd = redis::cmd("LLEN");
            cmd.arg(&names.operations);
            link.command(&cmd).await.map(|length: Value| Some(scripts::number(length)))
        };
        let ((owners, aliases, aliases_of), (schedules, number), (documents, listed, ranges)) =
            try_join3(
                try_join3(owners, aliases, aliases_of),
                try_join(schedules, number),
                try_join3(documents, listed, ranges),
            )
            .await?;
        let mut documents = documents.into_iter();
        Ok(Loaded {
            owners: needs.owners.iter().cloned().zip(owners).collect(),
            aliases: needs.aliases.iter().copied().zip(aliases).collect(),
            aliases_of,
            schedules: needs.schedules.iter().cloned().zip(schedules).collect(),
            documents: needs.documents.iter().cloned().zip(documents.by_ref()).collect(),
            glimpses: needs.glimpses.iter().cloned().zip(documents).collect(),
            ranges,
            listed: needs.listed.iter().copied().zip(listed).collect(),
            operation_number: number,
            ..Loaded::default()
        })
    }
}
