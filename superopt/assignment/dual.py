"""A lower bound by dual block coordinate ascent (sequential message passing after Kolmogorov 2006), on arrays.

Every edge carries a message to each of its two nodes: costs that are moved from its table to the node. A step takes
the nodes of one colour, none of which are neighbours: it moves to each node what its tables can give (the minima of
their rows), and deals the node's total out again among them. The sum of the least costs of all nodes and tables is
then a lower bound, and no step lowers it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from superopt.assignment.pairwise import Pairwise
from superopt.assignment.reduction import Floats, Integers

__all__ = ["Dual"]


@dataclass(frozen=True)
class _Batch:
    """Edges of equal shape at nodes of one colour.

    Attributes:
        nodes: strategy numbers at the node's end, shape (edges, strategies).
        own, other: where the messages to the two ends lie.
        tables: costs of shape (edges, strategies of the other end, strategies of the node).
    """

    nodes: Integers
    own: Integers
    other: Integers
    tables: Floats
    share: Floats


class Dual:
    """Messages of a pairwise model.

    Args:
        model: the model; forbidden pairs count as infinite.
    """

    def __init__(self, model: Pairwise) -> None:
        self.model = model
        first = model.sizes[model.pairs[:, 0]]
        second = model.sizes[model.pairs[:, 1]]
        begin = np.concatenate([[0], np.cumsum(first + second)]).astype(np.int64)
        self.begin = np.stack([begin[:-1], begin[:-1] + first], axis=1)
        self.messages = np.zeros(int(begin[-1]))
        tables = np.where(model.forbidden, np.inf, model.tables)
        colours = _colours(model)
        groups: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        before=np.zeros(model.nodes); after=np.zeros(model.nodes)
        for e,(a,b) in enumerate(model.pairs.tolist()):
            for side,(i,j) in enumerate(((a,b),(b,a))):
                groups[colours[i], int(model.sizes[j]), int(model.sizes[i])].append((e,side))
                if colours[j]<colours[i]: before[i]+=1
                else: after[i]+=1
        self.steps=defaultdict(list)
        most=np.maximum(np.maximum(before,after),1)
        for (colour,sj,si),members in sorted(groups.items()):
            es=np.array([m[0] for m in members]); sides=np.array([m[1] for m in members])
            n=len(es)
            at=model.table_offsets[es]
            s,t=np.arange(si),np.arange(sj)
            # table index for (t, s): side 0: node is first: s*sj+t ; side 1: node is second: t*si+s
            idx=np.where((sides==0)[:,None,None], at[:,None,None]+(s[None,None,:]*sj+t[None,:,None]), at[:,None,None]+(t[None,:,None]*si+s[None,None,:]))
            node=model.pairs[es,sides]; oth=model.pairs[es,1-sides]
            later=np.array([colours[j]>colours[i] for i,j in zip(node.tolist(),oth.tolist())])
            self.steps[colour].append((model.offsets[node][:,None]+s, self.begin[es,sides][:,None]+s, self.begin[es,1-sides][:,None]+t, tables[idx], later[:,None]/most[node][:,None], (~later)[:,None]/most[node][:,None]))
        self.order=sorted(self.steps)
        self.pair_groups=defaultdict(list)
        for e in range(len(model.pairs)): self.pair_groups[int(first[e]),int(second[e])].append(e)
        self.pair_groups={k:np.array(v) for k,v in self.pair_groups.items()}
        self.tables=tables

    def sweep(self, unary, forward=True):
        """one pass over the colours"""
        M=self.messages
        theta=unary+self._incoming()
        for colour in (self.order if forward else self.order[::-1]):
            got=[]
            for nodes,own,other,tab,fw,bw in self.steps[colour]:
                m=(tab-M[other][:,:,None]).min(axis=1)   # all that the table can give
                theta_add=m-M[own]
                np.add.at(theta,nodes.ravel(),theta_add.ravel()) if False else None
                got.append(m)
                M[own]=m
                theta+=np.bincount(nodes.ravel(),theta_add.ravel(),len(theta)) if nodes.size*8>len(theta) else 0
                if nodes.size*8<=len(theta): np.add.at(theta,nodes.ravel(),theta_add.ravel())
            for (nodes,own,other,tab,fw,bw),m in zip(self.steps[colour],got):
                share=(fw if forward else bw)
                give=theta[nodes]*share
                M[own]=m-give
            # theta of these nodes afterwards: recomputed
            for (nodes,own,other,tab,fw,bw),m in zip(self.steps[colour],got):
                pass
            upd=[(nodes,own,m) for (nodes,own,*_),m in zip(self.steps[colour],got)]
            for nodes,own,m in upd:
                d=M[own]-m
                np.add.at(theta,nodes.ravel(),d.ravel())
    def _incoming(self):
        m=self.model
        if not hasattr(self,'_inc'):
            idx=np.empty(len(self.messages),dtype=np.int64)
            for (si,sj),es in self.pair_groups.items():
                idx[self.begin[es,0][:,None]+np.arange(si)]=m.offsets[m.pairs[es,0]][:,None]+np.arange(si)
                idx[self.begin[es,1][:,None]+np.arange(sj)]=m.offsets[m.pairs[es,1]][:,None]+np.arange(sj)
            self._inc=idx
        return np.bincount(self._inc,self.messages,m.strategies)
    def bound(self, unary):
        """value, and theta, table minima"""
        m=self.model; theta=unary+self._incoming()
        node=np.minimum.reduceat(theta,m.offsets[:-1])
        total=[math.fsum(node)]
        for (si,sj),es in self.pair_groups.items():
            T=self.tables[m.table_offsets[es][:,None]+np.arange(si*sj)].reshape(-1,si,sj)
            a=self.messages[self.begin[es,0][:,None]+np.arange(si)]; b=self.messages[self.begin[es,1][:,None]+np.arange(sj)]
            total.append(math.fsum((T-a[:,:,None]-b[:,None,:]).min(axis=(1,2))))
        return math.fsum(total)

def _colours(model):
    colours=[-1]*model.nodes
    for i in sorted(range(model.nodes),key=lambda i:-len(model.neighbours[i])):
        used={colours[j] for j in model.neighbours[i]}
        c=0
        while c in used: c+=1
        colours[i]=c
    return colours
