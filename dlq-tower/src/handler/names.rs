//! The names in use by this process: two functions of one name over one store are refused.
//!
//! Keys and letters are kept by the handler's name. Where two functions go by one name, the key of a message that one of
//! them handled makes the other's message a duplicate, which never runs, and either is given the other's letters. Only
//! what shares a store shares keys and letters, so a name is taken for one store, and only while a handler or consumer
//! that uses it lives: a function may follow another one under its name, in a test or after a reload.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::InvalidConfig;

/// The function behind a handler, by which a handler that was built twice is told from two handlers of one name.
#[derive(Clone, Copy, Debug)]
pub struct FunctionId {
    id: TypeId,
    path: &'static str,
}

impl FunctionId {
    /// The function `F`.
    #[must_use]
    pub fn of<F: 'static>() -> Self {
        Self { id: TypeId::of::<F>(), path: std::any::type_name::<F>() }
    }

    /// The path of the function in its program, for people; closures of one function have the same.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.path
    }
}

impl PartialEq for FunctionId {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for FunctionId {}

/// By store and name: the function, and how often the name was taken for it.
type Names = BTreeMap<(Arc<str>, Arc<str>), (FunctionId, usize)>;

static NAMES: Mutex<Names> = Mutex::new(BTreeMap::new());

fn names() -> MutexGuard<'static, Names> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name taken for one function over one store, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken(Arc<str>, Arc<str>);

impl Taken {
    /// Takes `names` for `function` over the store of this identity.
    ///
    /// # Errors
    ///
    /// When one of them is taken for another function.
    pub(crate) fn all(
        store: &str,
        wanted: impl IntoIterator<Item = Arc<str>>,
        function: FunctionId,
    ) -> Result<Vec<Self>, InvalidConfig> {
        let store: Arc<str> = Arc::from(store);
        wanted.into_iter().map(|name| Self::one(&store, name, function)).collect()
    }

    fn one(store: &Arc<str>, name: Arc<str>, function: FunctionId) -> Result<Self, InvalidConfig> {
        let key = (Arc::clone(store), name);
        let mut names = names();
        let (known, times) = names.entry(key.clone()).or_insert((function, 0));
        if *known == function {
            *times += 1;
            return Ok(Self(key.0, key.1));
        }
        Err(InvalidConfig::new(format!(
            "cannot build the handler `{name}`, which is `{}`: `{}` goes by this name as well and has the same store, so that \
             each would get the other's letters and its keys would pass for handled; give one of them another `name`",
            function.path,
            known.path,
            name = key.1
        )))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let key = (Arc::clone(&self.0), Arc::clone(&self.1));
        if let std::collections::btree_map::Entry::Occupied(mut entry) = names().entry(key) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Orders;
    struct Payments;

    fn take<F: 'static>(store: &str, names: &[&str]) -> Result<Vec<Taken>, InvalidConfig> {
        Taken::all(store, names.iter().map(|name| Arc::from(*name)), FunctionId::of::<F>())
    }

    #[test]
    fn a_name_is_free_again_once_every_handler_of_its_function_is_gone() {
        let first = take::<Orders>("names test", &["handle", "former"]).unwrap();
        let again = take::<Orders>("names test", &["handle"]).unwrap();
        let error = take::<Payments>("names test", &["other", "former"]).unwrap_err().to_string();
        assert!(error.contains("::Payments`: `") && error.contains("::Orders` goes"), "{error}");
        let elsewhere = take::<Payments>("names test 2", &["handle"]).unwrap();
        let other = take::<Payments>("names test", &["other"]).unwrap();
        drop(first);
        assert!(take::<Payments>("names test", &["former"]).is_ok());
        assert!(take::<Payments>("names test", &["handle"]).is_err());
        drop(again);
        assert!(take::<Payments>("names test", &["handle"]).is_ok());
        drop((elsewhere, other));
        assert!(!names().keys().any(|(store, _)| store.starts_with("names test")), "none is kept");
    }
}
