//! How many requests of each route had each status.
//!
//! A route is its pattern, never the path of a request, so their number is bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::http::{Method, StatusCode};
use lab_base::util::lock::lock;

/// A method, the pattern of a route, and a status.
type Outcome = (&'static str, &'static str, u16);

/// The responses since the server began.
#[derive(Clone, Debug)]
pub(crate) struct RequestCounts {
    began: SystemTime,
    all: Arc<Mutex<BTreeMap<Outcome, u64>>>,
}

impl RequestCounts {
    pub(crate) fn new() -> Self {
        Self {
            began: SystemTime::now(),
            all: Arc::default(),
        }
    }

    /// When the server began.
    pub(crate) fn began(&self) -> SystemTime {
        self.began
    }

    pub(crate) fn add(&self, method: &'static str, route: &'static str, status: StatusCode) {
        let mut all = lock(&self.all);
        *all.entry((method, route, status.as_u16())).or_default() += 1;
    }

    pub(crate) fn all(&self) -> Vec<(Outcome, u64)> {
        let all = lock(&self.all);
        all.iter().map(|(outcome, n)| (*outcome, *n)).collect()
    }
}

/// The name of a method; `other` for one that no route has, of which there could be any number.
pub(crate) fn method_name(method: &Method) -> &'static str {
    for (own, name) in [
        (Method::GET, "GET"),
        (Method::POST, "POST"),
        (Method::DELETE, "DELETE"),
        (Method::HEAD, "HEAD"),
        (Method::OPTIONS, "OPTIONS"),
    ] {
        if own == method {
            return name;
        }
    }
    "other"
}
