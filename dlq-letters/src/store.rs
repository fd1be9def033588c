/// Makes a store of a [`Backend`](crate::Backend): implements `Sink`, `Claims`, `Operations`, `Dispatch`, `Maintenance` and `RetryQueue` of
/// `dlq-core` for a type.
///
/// ```ignore
/// dlq_letters::store!(SqliteStore);
/// ```
#[macro_export]
macro_rules! store {
    ($store:ty) => {
        const _: () = {
            use ::std::option::Option;
            use ::std::result::Result;
            use ::std::string::String;
            use ::std::time::Duration;
            use ::std::vec::Vec;
            use $crate::__private::core::store::*;
            use $crate::__private::core::{
                DeadLetter, Death, DelayedRetry, Finding, LetterId, OperationId, RetryQueue,
                StoreError, Timestamp,
            };
            use $crate::{Backend, dispatching, engine};

            impl Sink for $store {
                async fn put(&self, letters: Vec<DeadLetter>) -> Result<Vec<Receipt>, StoreError> {
                    engine::put(self, letters).await
                }
            }

            impl RetryQueue for $store {
                async fn enqueue(&self, delayed_retry: DelayedRetry) -> Result<(), StoreError> {
                    engine::enqueue(self, delayed_retry).await
                }
            }

            impl Claims for $store {
                async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
                    engine::claim(self, request).await
                }

                async fn extend(
                    &self,
                    tokens: Vec<ClaimToken>,
                    lease: Duration,
                ) -> Result<Vec<bool>, StoreError> {
                    engine::extend(self, tokens, lease).await
                }

                async fn finish(
                    &self,
                    finishes: Vec<(ClaimToken, Finish)>,
                ) -> Result<Vec<Finished>, StoreError> {
                    engine::finish(self, finishes).await
                }

                async fn next_due(
                    &self,
                    consumers: Vec<String>,
                ) -> Result<Option<Timestamp>, StoreError> {
                    Backend::next_due(self, consumers).await
                }

                async fn due_elsewhere(
                    &self,
                    consumers: Vec<String>,
                    heard: u64,
                ) -> Result<u64, StoreError> {
                    Backend::due_elsewhere(self, consumers, heard).await
                }

                fn store_identity(&self) -> Option<String> {
                    Backend::store_identity(self)
                }

                async fn run_schedule(
                    &self,
                    run: ScheduleRun,
                ) -> Result<(u64, Duration), StoreError> {
                    engine::run_schedule(self, run).await
                }
            }

            impl Operations for $store {
                async fn plan(&self, spec: OperationSpec) -> Result<Plan, StoreError> {
                    engine::plan(self, spec).await
                }

                async fn start(
                    &self,
                    spec: OperationSpec,
                    by: Actor,
                ) -> Result<Operation, StoreError> {
                    engine::start(self, spec, by).await
                }

                async fn operation(
                    &self,
                    id: OperationId,
                ) -> Result<Option<Operation>, StoreError> {
                    Backend::operation(self, id).await
                }

                async fn operations(&self, limit: u32) -> Result<Vec<Operation>, StoreError> {
                    Backend::operations(self, limit).await
                }

                async fn items(
                    &self,
                    id: OperationId,
                    after: u64,
                    limit: u32,
                ) -> Result<ItemPage, StoreError> {
                    Backend::items(self, id, after, limit).await
                }

                async fn control(
                    &self,
                    id: OperationId,
                    control: Control,
                    by: Actor,
                ) -> Result<Operation, StoreError> {
                    engine::control(self, id, control, by).await
                }

                async fn set_pace(
                    &self,
                    id: OperationId,
                    pace: Option<Pace>,
                    by: Actor,
                ) -> Result<Operation, StoreError> {
                    engine::set_pace(self, id, pace, by).await
                }
            }

            impl Dispatch for $store {
                async fn take(&self, request: TakeRequest) -> Result<Takes, StoreError> {
                    dispatching::take(self, request).await
                }

                async fn record(
                    &self,
                    dispatched: Vec<(ClaimToken, Dispatched)>,
                ) -> Result<Vec<Finished>, StoreError> {
                    dispatching::record(self, dispatched).await
                }

                async fn succeeded(&self, deaths: Vec<Death>) -> Result<u64, StoreError> {
                    dispatching::succeeded(self, deaths).await
                }
            }

            impl Maintenance for $store {
                async fn mark(
                    &self,
                    selection: Selection,
                    mark: Mark,
                    by: Actor,
                ) -> Result<Marked, StoreError> {
                    engine::mark(self, selection, mark, by).await
                }

                async fn delete(
                    &self,
                    selection: Selection,
                    by: Actor,
                ) -> Result<Marked, StoreError> {
                    engine::delete(self, selection, by).await
                }

                async fn delete_for_good(
                    &self,
                    selection: Selection,
                    by: Actor,
                ) -> Result<Marked, StoreError> {
                    engine::delete_for_good(self, selection, by).await
                }

                async fn archived(
                    &self,
                    request: ArchiveRequest,
                ) -> Result<ArchivePage, StoreError> {
                    engine::archived(self, request).await
                }

                async fn undelete(
                    &self,
                    filter: ArchiveFilter,
                    by: Actor,
                ) -> Result<Marked, StoreError> {
                    engine::undelete(self, filter, by).await
                }

                async fn cleanup(
                    &self,
                    cleanup: Cleanup,
                    by: Actor,
                ) -> Result<Cleaned, StoreError> {
                    engine::cleanup(self, cleanup, by).await
                }

                async fn edit(
                    &self,
                    id: LetterId,
                    edit: Edit,
                    by: Actor,
                ) -> Result<DeadLetter, StoreError> {
                    engine::edit(self, id, edit, by).await
                }

                async fn restore(
                    &self,
                    letters: Vec<DeadLetter>,
                    by: Actor,
                ) -> Result<Vec<Receipt>, StoreError> {
                    engine::restore(self, letters, by).await
                }

                async fn audit(
                    &self,
                    request: AuditRequest,
                ) -> Result<Vec<AuditEntry>, StoreError> {
                    engine::audit(self, request).await
                }

                async fn group_records(
                    &self,
                    groups: Vec<GroupKey>,
                ) -> Result<Vec<GroupRecord>, StoreError> {
                    engine::group_records(self, groups).await
                }

                async fn update_group(
                    &self,
                    group: GroupKey,
                    update: GroupUpdate,
                    by: Actor,
                ) -> Result<GroupRecord, StoreError> {
                    engine::update_group(self, group, update, by).await
                }

                async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), StoreError> {
                    engine::heartbeat(self, heartbeat).await
                }

                async fn sign_off(&self, heartbeat: Heartbeat) -> Result<(), StoreError> {
                    engine::sign_off(self, heartbeat).await
                }

                async fn consumers(&self) -> Result<(Vec<Presence>, Timestamp), StoreError> {
                    engine::consumers(self).await
                }

                async fn record_processed(
                    &self,
                    events: Vec<ProcessedEvent>,
                ) -> Result<(), StoreError> {
                    Backend::record_processed(self, events).await
                }

                async fn processed(&self, limit: u32) -> Result<Vec<ProcessedEvent>, StoreError> {
                    Backend::processed(self, limit).await
                }

                async fn deduplicate(&self, force: bool) -> Result<u64, StoreError> {
                    engine::deduplicate(self, force).await
                }

                async fn check(&self, limits: CheckLimits) -> Result<Vec<Finding>, StoreError> {
                    Backend::check(self, limits).await
                }

                async fn due(&self, overdue: Duration) -> Result<Vec<Due>, StoreError> {
                    Backend::due(self, overdue).await
                }
            }
        };
    };
}
