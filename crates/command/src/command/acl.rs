//! Commands about users and their rights.

use crate::args::Args;

/// Commands about users and their rights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Acl<'a> {
    /// The categories of commands, or the commands of one.
    Cat {
        /// The category, without `@`.
        category: Option<&'a [u8]>,
    },
    /// Removes users.
    DelUser {
        /// Their names.
        names: Args<'a>,
    },
    /// Whether a user may run a request.
    DryRun {
        /// The user.
        user: &'a [u8],
        /// The request, from its name on.
        request: Args<'a>,
    },
    /// A random password.
    GenPass {
        /// Its bits, as text.
        bits: Option<&'a [u8]>,
    },
    /// The rules of a user.
    GetUser {
        /// Its name.
        name: &'a [u8],
    },
    /// All users, each as a line of an ACL file.
    List,
    /// Reads the users from the ACL file.
    Load,
    /// What was refused lately.
    Log {
        /// At most so many entries.
        count: u64,
    },
    /// Forgets what was refused.
    LogReset,
    /// Who defined what, and what is refused because its owner lost a right.
    Owners,
    /// Writes the users to the ACL file.
    Save,
    /// Adds a user, or changes one.
    SetUser {
        /// Its name.
        name: &'a [u8],
        /// The rules, in order.
        rules: Args<'a>,
    },
    /// The names of the users.
    Users,
    /// The user of this connection.
    WhoAmI,
}
