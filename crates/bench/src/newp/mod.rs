//! Newp: pages of a news site, the second workload of the Pequod paper.
//!
//! A session reads an article's page (its text, its rank, which is its number of votes, its
//! comments, and the karma of each commenter, which is the number of votes on his articles),
//! then votes for it or comments on it with some probability. Headwater keeps whole pages by
//! interleaved joins and answers with one `PREFIX`; `separate` reads the same things one by
//! one, as all other systems must. [`site`] draws the workload and is the model;
//! each system has a [`Pages`].

pub mod headwater;
pub mod postgres;
pub mod redis;
pub mod run;
pub mod site;

use crate::wire::{Connection, Input};
use anyhow::Result;
use site::Site;
use std::io;

/// A comment as it is shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Comment {
    /// Its number on the whole site.
    pub id: u32,
    /// Who wrote it.
    pub commenter: u32,
    /// What it says.
    pub text: Vec<u8>,
    /// The votes on articles of its writer.
    pub karma: u32,
}

/// A page as it is shown.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Page {
    /// The article.
    pub text: Vec<u8>,
    /// Its votes.
    pub rank: u32,
    /// Its comments, by number.
    pub comments: Vec<Comment>,
}

/// Where a reply goes: counted only, or kept for a comparison.
pub type KeptPage<'a> = Option<&'a mut Page>;

/// How pages are kept in one system.
///
/// A batch goes in up to three rounds: reads; the look-ups that they make necessary, votes and comments;
/// what new votes make necessary.
pub trait Pages {
    /// Brings the site into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    fn load(&mut self, site: &Site, connection: &mut Connection) -> Result<()>;

    /// Readies another connection.
    ///
    /// # Errors
    /// As for [`Pages::load`].
    fn prepare(&self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }

    /// Asks for a page.
    fn read(&mut self, out: &mut Vec<u8>, site: &Site, article: u32);
    /// Ends the reads of a batch.
    fn end_reads(&mut self, _out: &mut Vec<u8>) {}
    /// Takes the answer; `true` if it wrote a look-up that [`Pages::got_more`] must take.
    ///
    /// # Errors
    /// The connection fails or the answer is none.
    fn got(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        keep: KeptPage<'_>,
    ) -> io::Result<bool>;
    /// Takes what follows the answers to all reads of a batch.
    ///
    /// # Errors
    /// As for [`Pages::got`].
    fn got_all(&mut self, _input: &mut Input) -> io::Result<()> {
        Ok(())
    }
    /// Takes the answer to a look-up.
    ///
    /// # Errors
    /// As for [`Pages::got`].
    fn got_more(&mut self, _input: &mut Input, _keep: KeptPage<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Votes for an article.
    fn vote(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, voter: u32);
    /// Takes its answer; `true` if it wrote a command that [`Pages::skip`] must take.
    ///
    /// # Errors
    /// As for [`Pages::got`].
    fn voted(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        site: &Site,
        article: u32,
    ) -> io::Result<bool>;

    /// Comments on an article.
    fn comment(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, id: u32, commenter: u32);
    /// Takes one reply that says nothing but that it was done.
    ///
    /// # Errors
    /// As for [`Pages::got`].
    fn skip(&mut self, input: &mut Input) -> io::Result<()>;
}
