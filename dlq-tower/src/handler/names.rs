//! The names in use by this process: two functions of one name over one store are refused, and so are two names whose
//! variables of the environment are the same.
//!
//! Keys and letters are kept by the handler's name. Where two functions go by one name, the key of a message that one of
//! them handled makes the other's message a duplicate, which never runs, and either is given the other's letters. Only
//! what shares a store shares keys and letters, so a name is taken for one store, and only while a handler or consumer
//! that uses it lives: a function may follow another one under its name, in a test or after a reload.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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

/// The function that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// Keys and letters of this function.
    Function(FunctionId),
    /// Variables of the handler of this name.
    Handler(Arc<str>),
}

/// The place where a name is taken: a store, or the environment.
type Key = (Arc<str>, Arc<str>);

/// The owner of each name, and how often it was taken.
// Global, since handlers and consumers of one program need not know each other, and still share a store.
static NAMES: Mutex<BTreeMap<Key, (Owner, usize)>> = Mutex::new(BTreeMap::new());

fn names() -> MutexGuard<'static, BTreeMap<Key, (Owner, usize)>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken(Key);

impl Taken {
    /// Takes `names` for `function` over the store of this identity.
    ///
    /// # Errors
    ///
    /// When one of them is taken for another function.
    pub(crate) fn names(
        store: &str,
        names: impl IntoIterator<Item = Arc<str>>,
        function: FunctionId,
    ) -> Result<Vec<Self>, InvalidConfig> {
        let store: Arc<str> = Arc::from(store);
        let take = |name: Arc<str>| {
            let key = (Arc::clone(&store), Arc::clone(&name));
            Self::take(key, Owner::Function(function)).map_err(|other| {
                let other = match other {
                    Owner::Function(other) => other.path(),
                    Owner::Handler(_) => "another one",
                };
                InvalidConfig::new(format!(
                    "cannot build the handler `{name}`, which is `{}`: `{other}` goes by this name as well and has the same \
                     store, so that each would get the other's letters and its keys would pass for handled; give one of them \
                     another `name`",
                    function.path()
                ))
            })
        };
        // If one of them is taken, those before it are dropped with the error, and free again.
        names.into_iter().map(take).collect()
    }

    /// Takes the variables of the environment that begin with `prefix` for the handler `name`.
    ///
    /// # Errors
    ///
    /// When they are those of a handler with another name.
    pub(crate) fn variables(prefix: &str, name: &Arc<str>) -> Result<Self, InvalidConfig> {
        // No store has this identity.
        let key = (Arc::from("environment"), Arc::from(prefix));
        Self::take(key, Owner::Handler(Arc::clone(name))).map_err(|other| match other {
            Owner::Handler(other) => same_variables(name, &other, prefix),
            Owner::Function(other) => same_variables(name, other.path(), prefix),
        })
    }

    /// Takes a name, or says who has it.
    fn take(key: Key, owner: Owner) -> Result<Self, Owner> {
        let mut names = names();
        let (known, times) = names.entry(key.clone()).or_insert_with(|| (owner.clone(), 0));
        if *known != owner {
            return Err(known.clone());
        }
        // One function may be built several times, and its name is free once the last of these is gone.
        *times += 1;
        Ok(Self(key))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = names().entry(self.0.clone()) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }
}

/// Two handlers read the same variables.
pub(crate) fn same_variables(name: &str, other: &str, prefix: &str) -> InvalidConfig {
    InvalidConfig::new(format!(
        "cannot build the handler `{name}`: the handler `{other}` reads the same variables of the environment, those that \
         begin with `{prefix}`, and what is set for one would change both; rename one, or give one another prefix"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Orders;
    struct Payments;

    fn take<F: 'static>(store: &str, names: &[&str]) -> Result<Vec<Taken>, InvalidConfig> {
        Taken::names(store, names.iter().map(|name| Arc::from(*name)), FunctionId::of::<F>())
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

    #[test]
    fn variables_belong_to_one_name() {
        let names = ["a.b", "a-b"].map(Arc::<str>::from);
        let first = Taken::variables("NAMES_TEST_A_B_", &names[0]).unwrap();
        assert!(Taken::variables("NAMES_TEST_A_B_", &names[0]).is_ok(), "built twice");
        let error = Taken::variables("NAMES_TEST_A_B_", &names[1]).unwrap_err().to_string();
        assert!(error.contains("`a-b`: the handler `a.b`"), "{error}");
        assert!(Taken::variables("NAMES_TEST_2_A_B_", &names[1]).is_ok());
        drop(first);
        assert!(Taken::variables("NAMES_TEST_A_B_", &names[1]).is_ok());
    }
}
