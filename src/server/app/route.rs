//! A route as the router and its documentation see it.

use crate::request::fields::FieldDoc;

/// The process that answers the requests of a route if models have engine processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    Server,
    /// The engine process of the model that the request names; the model is loaded for it.
    Model,
    /// The engine process if the model is loaded, otherwise the server.
    Loaded,
}

pub(crate) struct Route {
    pub(crate) owner: AnsweredBy,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    /// The fields of the body; `None` if the body is neither a JSON object nor a form.
    pub(crate) fields: Option<fn() -> Vec<FieldDoc>>,
    pub(crate) shape: ResponseDoc,
}

impl Route {
    /// The content type of the body.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.path.starts_with("/v1/audio/") {
            true => "multipart/form-data",
            false => "application/json",
        }
    }

    /// Whether only this project defines the body, so that a field that is not known is refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.path.starts_with("/v1/lab/") || ["/models/rescan", "/quit"].contains(&self.path)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseDoc {
    /// Keys that every JSON response has; other responses are not described.
    pub(crate) keys: &'static [&'static str],
    /// Content types of a response that is not JSON.
    pub(crate) types: &'static [&'static str],
    pub(crate) status: &'static str,
    /// Whether `?model=NAME` selects the model.
    pub(crate) has_model: bool,
}
