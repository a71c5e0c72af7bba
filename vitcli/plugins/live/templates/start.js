for (const root of document.querySelectorAll(".explorer")) new Explorer(root);
