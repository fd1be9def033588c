mod dispatch;

pub(crate) use dispatch::{Record, Succeed, Take};
