//! Models by name: repositories of the Hugging Face Hub, downloaded into the cache that its Python client uses too.
//!
//! [`ModelName`] is what a user writes (`owner/repo:quant@revision`), [`Cache`] the folders on disk, [`Hub`] the server, [`select`] the
//! choice of the files that a model consists of, and [`Hub::pull`] the download. Nothing here knows what is in a model's files.

mod cache;
mod client;
mod download;
mod error;
mod name;
mod pull;
mod select;
mod settings;
#[cfg(test)]
mod tests;

pub use cache::{Cache, CachedModel, Removed};
pub use client::{Hub, RepoListing};
pub use download::Progress;
pub use error::HubError;
pub use name::ModelName;
pub use select::{Selection, select};
pub use settings::Settings;
