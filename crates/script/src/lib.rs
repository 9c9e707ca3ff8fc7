//! Golden scripts: behaviour as stories that anyone can read, run against the engine.
