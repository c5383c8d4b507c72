//! Code that examines a model and changes nothing: descriptions, diagrams, comparisons, capabilities.

pub mod calibrate;
pub mod capabilities;
pub mod compare;
pub mod describe;
pub mod diagram;
pub mod drafter;
pub mod drift;
pub mod evaluate;
pub mod idle_keys;
pub mod mix_search;
pub mod nearest;
pub mod paths;
pub mod pictures;
pub mod prove;
pub mod template_probe;
pub mod towers;
