//! For which block or place an operation was built.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::arena::Tensor;

/// The kind of operations that belong to the model as a whole.
pub(super) const OUTSIDE: &str = "wiring";

/// The origin of an operation: the kind of its block, the path of the unit or place, and which
/// use of both it is, counted from 0.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) kind: &'static str,
    pub(super) path: Rc<str>,
    pub(super) nth: u32,
}

impl Place {
    pub(super) fn outside() -> Self {
        Self {
            kind: OUTSIDE,
            path: Rc::from(""),
            nth: 0,
        }
    }
}

/// The origins of the operations of a graph.
#[derive(Default)]
pub(super) struct Scopes {
    current: RefCell<Option<Place>>,
    of_node: RefCell<HashMap<usize, Place>>,
    pub(super) uses: RefCell<BTreeMap<&'static str, u64>>,
    entered: RefCell<HashMap<(&'static str, Rc<str>), u32>>,
}

impl Scopes {
    /// Takes note of a new node.
    pub(super) fn note(&self, node: &Tensor) {
        if let Some(place) = &*self.current.borrow() {
            self.of_node.borrow_mut().insert(node.key(), place.clone());
        }
    }

    /// The place of a node, by its address.
    pub(super) fn place(&self, node: usize) -> Option<Place> {
        self.of_node.borrow().get(&node).cloned()
    }

    /// The same as one more use of a block.
    pub(super) fn enter_block(&self, kind: &'static str, path: &str) -> Scope<'_> {
        *self.uses.borrow_mut().entry(kind).or_default() += 1;
        self.enter(kind, path)
    }

    /// Operations noted until the result is dropped belong to `kind` at `path`.
    pub(super) fn enter(&self, kind: &'static str, path: &str) -> Scope<'_> {
        let path: Rc<str> = Rc::from(path);
        let mut entered = self.entered.borrow_mut();
        let times = entered.entry((kind, path.clone())).or_default();
        let nth = *times;
        *times += 1;
        Scope {
            scopes: self,
            before: self.current.replace(Some(Place { kind, path, nth })),
        }
    }
}

/// While it lives, new operations have its origin.
pub struct Scope<'g> {
    scopes: &'g Scopes,
    before: Option<Place>,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.scopes.current.replace(self.before.take());
    }
}
