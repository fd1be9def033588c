use crate::Running;

/// Three servers that are one.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Running>,
}

impl Cluster {
    pub(crate) fn new(nodes: Vec<Running>) -> Self {
        Self { nodes }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Running] {
        &self.nodes
    }

    /// One node, to be killed or restarted; `None` when there are not that many.
    pub fn node(&mut self, index: usize) -> Option<&mut Running> {
        self.nodes.get_mut(index)
    }

    /// The URLs of all nodes, joined by commas.
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(Running::url).collect();
        urls.join(",")
    }
}
