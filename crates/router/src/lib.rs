//! What crosses between shards for clients: typed requests and answers, who executes what, and how several shards do
//! one thing.
//!
//! A client's requests are decoded once, by its own session. [`course`] says what becomes of each. What concerns keys is executed at their home ([`route`]):
//! requests ([`Ask`]) and answers ([`Answer`]) go there and back in a form of their own, whatever protocol the client speaks. The
//! session puts the answers in the order of its requests ([`Pending`]), and answers of several shards to one request
//! together ([`Merge`]). What several shards must do as one step is a [`Transaction`], over [`Locks`] at each of them.
//!
//! Nothing here has a clock, a thread or a socket: whoever drives it brings the time and the messages.

#![no_std]
extern crate alloc;

mod answer;
mod ask;
mod check;
mod course;
pub mod items;
mod locks;
mod merge;
mod objections;
mod pending;
mod plan;
mod program;
mod purpose;
mod record;
mod redo;
mod route;
mod transaction;

pub use answer::{Answer, AnswerWriter, Form, Token, answer_of};
pub use ask::{
    AnswerFrame, Ask, AskHeader, Budget, Copies, Frames, OpenFrame, PutValue, Requests,
    write_answer, write_ask,
};
pub use check::{are_answers, are_requests};
pub use course::{Course, Situation, course};
pub use locks::{LockSet, Locks, Owner, TransactionId};
pub use merge::Merge;
pub use pending::{Encode, Inner, Kind, Pending, Question, Scattered};
pub use plan::lock_set;
pub use program::{Program, Step, StepAsk};
pub use purpose::PutPurpose;
pub use record::{Place, Recording};
pub use redo::{RecordedStep, Redo};
pub use route::{Request, Route, route};
pub use transaction::{Finished, Item, ItemAnswer, Next, Plan, Transaction};
