//! The block or place for which an operation was built.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::arena::Tensor;

pub(super) const OUTSIDE: &str = "wiring";

/// The origin of an operation: the kind of its block, the path of the unit or place, and the number of this use of
/// both, counted from 0.
#[derive(Clone)]
pub(super) struct ScopePlace {
    pub(super) kind: &'static str,
    pub(super) path: Rc<str>,
    pub(super) nth: u32,
    /// The device number of the unit in the plan, if it is placed.
    pub(super) device: Option<usize>,
}

impl ScopePlace {
    pub(super) fn outside() -> Self {
        Self {
            kind: OUTSIDE,
            path: Rc::from(""),
            nth: 0,
            device: None,
        }
    }
}

#[derive(Default)]
pub(super) struct Scopes {
    current: RefCell<Option<ScopePlace>>,
    of_node: RefCell<HashMap<usize, ScopePlace>>,
    pub(super) uses: RefCell<BTreeMap<&'static str, u64>>,
    entered: RefCell<HashMap<(&'static str, Rc<str>), u32>>,
}

impl Scopes {
    pub(super) fn note(&self, node: &Tensor) {
        if let Some(place) = &*self.current.borrow() {
            self.of_node.borrow_mut().insert(node.key(), place.clone());
        }
    }

    /// Whether operations that are recorded now are not placed on another device than the processor.
    pub(super) fn is_on_processor(&self) -> bool {
        let current = self.current.borrow();
        current.as_ref().and_then(|place| place.device).unwrap_or(0) == 0
    }

    pub(super) fn place(&self, node: usize) -> Option<ScopePlace> {
        self.of_node.borrow().get(&node).cloned()
    }

    /// [`Self::enter`] as one more use of a block, on a device of the plan.
    pub(super) fn enter_block(
        &self,
        kind: &'static str,
        path: &str,
        device: Option<usize>,
    ) -> Scope<'_> {
        *self.uses.borrow_mut().entry(kind).or_default() += 1;
        self.enter_on(kind, path, device)
    }

    /// [`Self::enter`] on a device, if one is given.
    pub(super) fn enter_on(
        &self,
        kind: &'static str,
        path: &str,
        device: Option<usize>,
    ) -> Scope<'_> {
        let scope = self.enter(kind, path);
        if let (Some(place), Some(_)) = (&mut *self.current.borrow_mut(), device) {
            place.device = device;
        }
        scope
    }

    /// Assigns operations that are recorded until the result is dropped to `kind` at `path`, on the device of the
    /// enclosing scope.
    pub(super) fn enter(&self, kind: &'static str, path: &str) -> Scope<'_> {
        let path: Rc<str> = Rc::from(path);
        let mut entered = self.entered.borrow_mut();
        let times = entered.entry((kind, path.clone())).or_default();
        let nth = *times;
        *times += 1;
        let device = self.current.borrow().as_ref().and_then(|p| p.device);
        let place = ScopePlace {
            kind,
            path,
            nth,
            device,
        };
        Scope {
            scopes: self,
            before: self.current.replace(Some(place)),
        }
    }
}

/// While the scope lives, new operations have its origin.
pub struct Scope<'g> {
    scopes: &'g Scopes,
    before: Option<ScopePlace>,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.scopes.current.replace(self.before.take());
    }
}
